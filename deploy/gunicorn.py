"""
gunicorn's configuration for the pages.

The scheme of a request is taken from X-Forwarded-Proto only if the peer is listed in FENCEWATCH_PROXY_ADDRESSES. Other
forwarded headers reach the application from any peer, so bind to the loopback address or a socket that only the proxy
reaches, and let the proxy overwrite them.
"""

import os
import sys
from typing import Any

import django
from django.core.exceptions import ImproperlyConfigured

try:
    from dashboard import environment

    environment.required("DATABASE_URL", because="the pages read the work table under that role")
    from dashboard import settings

    bind = environment.text("FENCEWATCH_BIND", default="127.0.0.1:8000")
    workers = environment.number("FENCEWATCH_WEB_PROCESSES", default=2, least=1, most=64)
    threads = environment.number("FENCEWATCH_WEB_THREADS", default=8, least=1, most=64)
    forwarded_allow_ips = environment.text("FENCEWATCH_PROXY_ADDRESSES", default="127.0.0.1,::1")
except ImproperlyConfigured as error:
    # One sentence for the person who starts it, no stack.
    sys.exit(f"Fencewatch cannot start: {error}")


def on_starting(server: Any) -> None:
    """
    Refuse to serve under a role that the database's rules do not bind.

    The application is loaded for it, before the workers fork: a new version needs a restart, SIGHUP keeps the old one.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from dashboard.checks import require_bound_roles

    require_bound_roles("default", "accounts")


wsgi_app = "dashboard.wsgi"
worker_class = "gthread"
timeout = 30
graceful_timeout = 10
keepalive = 5
limit_request_line = 4094
limit_request_fields = 64
# gunicorn opens a control socket below the home folder unless told not to.
control_socket_disable = True
# Requests are logged by the application, with digests only.
accesslog = None
_own = {"level": "INFO", "handlers": ["stderr"], "propagate": False}
logconfig_dict = settings.LOGGING | {"loggers": settings.LOGGING["loggers"] | {"gunicorn.error": _own}}
