from typing import Any

from django.apps import apps


def test_every_column_of_a_reading_model_is_a_column_of_its_table(superuser: Any) -> None:
    rows = superuser.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    ).fetchall()
    unmanaged = [model for model in apps.get_app_config("workitems").get_models() if not model._meta.managed]
    assert unmanaged
    for model in unmanaged:
        # A composite key has no column of its own.
        columns = {(model._meta.db_table, field.column) for field in model._meta.concrete_fields if field.column}
        assert columns <= set(rows), f"{model.__name__} names columns that its table lacks."
