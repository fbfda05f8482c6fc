"""A backend of the project."""

from __future__ import annotations

from eventmq_contrib.django import EventMQBackend


class Derived(EventMQBackend):
    """As a project writes one, to change something for all of its tasks."""
