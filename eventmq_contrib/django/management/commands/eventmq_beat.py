"""``manage.py eventmq_beat``: submits tasks on their schedules."""

from __future__ import annotations

from eventmq_contrib.django.management.passing import PassingCommand

__all__ = ["Command"]


class Command(PassingCommand):
    """Runs the scheduler of the app of the backend."""

    help = "Submit the jobs of the project's schedules."
    command = "beat"
