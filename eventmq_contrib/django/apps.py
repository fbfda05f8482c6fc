"""The Django app ``"eventmq_contrib.django"``: commands, permissions, and the outbox's table."""

from __future__ import annotations

from django.apps import AppConfig

import eventmq_contrib.django.framework  # noqa: F401 - registers the checks of the settings

__all__ = ["EventMQConfig"]


class EventMQConfig(AppConfig):
    """Entry of ``INSTALLED_APPS``; its label is ``eventmq``."""

    name = "eventmq_contrib.django"
    label = "eventmq"
    verbose_name = "EventMQ"
