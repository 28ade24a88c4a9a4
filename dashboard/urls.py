from django.urls import path, register_converter

from dashboard import views


class Digest:
    """A full digest in an address. A short form never leads anywhere."""

    regex = "[0-9a-f]{64}"

    def to_python(self, value: str) -> bytes:
        return bytes.fromhex(value)

    def to_url(self, value: bytes | str) -> str:
        return value if isinstance(value, str) else value.hex()


register_converter(Digest, "digest")

urlpatterns = [
    path("", views.overview, name="overview"),
    path("work/", views.work, name="work"),
    path("work/find/", views.find, name="find"),
    path("work/<digest:digest>/", views.item, name="item"),
    path("sign-in/", views.SignIn.as_view(), name="sign-in"),
    path("sign-out/", views.SignOut.as_view(), name="sign-out"),
]

handler404 = views.missing
handler500 = views.broken
