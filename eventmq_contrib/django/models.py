"""The table of the outbox, and the permissions of the dashboard."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from eventmq_contrib.outbox import TABLE

__all__ = ["OutboxJob"]


class OutboxJob(models.Model):
    """A job that waits for ``eventmq outbox relay``: to be read, not written."""

    seq = models.BigAutoField(primary_key=True)
    job_id = models.TextField()
    queue = models.TextField()
    headers = models.TextField()
    body = models.BinaryField()

    class Meta:
        """Its migration makes the table with the statements of `eventmq_contrib.outbox`."""

        managed = False
        db_table = TABLE
        default_permissions = ()
        permissions: ClassVar = [
            ("view_dashboard", "Can view the dashboard"),
            ("operate_dashboard", "Can act in the dashboard"),
        ]

    def __str__(self) -> str:
        return str(self.job_id)
