"""Makes the table of the outbox with its own statements, and the permissions of the dashboard."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from eventmq_contrib.outbox import DDL, TABLE


def _make(_: Any, editor: Any) -> None:
    for statement in DDL.get(editor.connection.vendor, ()):
        editor.execute(statement, params=None)


class Migration(migrations.Migration):
    """The first."""

    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="OutboxJob",
            fields=[("seq", models.BigAutoField(primary_key=True))],  # the others are not managed
            options={
                "db_table": TABLE, "managed": False, "default_permissions": (),
                "permissions": [
                    ("view_dashboard", "Can view the dashboard"),
                    ("operate_dashboard", "Can act in the dashboard"),
                ],
            },
        ),
        migrations.RunPython(_make, lambda _, editor: editor.execute(f"DROP TABLE {TABLE}")),
    ]  # fmt: skip
