"""``manage.py eventmq_worker``: runs the project's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq_contrib.django.framework import task_backends
from eventmq_contrib.django.management.passing import PassingCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command"]


class Command(PassingCommand):
    """Runs a worker of the queues of the backend, unless ``-Q`` names others."""

    help = "Run the jobs of the project's tasks."
    command = "worker"

    def more(self, alias: str, args: Sequence[str]) -> Sequence[str]:
        """Return ``-Q`` with the QUEUES of the backend."""
        queues = sorted(task_backends[alias].queues)
        named = any(each.startswith(("-Q", "--queues")) for each in args)
        return [] if named or not queues else ["-Q", ",".join(queues)]
