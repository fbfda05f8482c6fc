"""``manage.py eventmq_beat``: submits tasks on their schedules."""

from __future__ import annotations

from eventmq_contrib.django.management.commands import eventmq_worker

__all__ = ["Command"]


class Command(eventmq_worker.Command):
    """Runs ``eventmq beat``."""

    help = "Submit the jobs of the project's schedules."
    command = "beat"
