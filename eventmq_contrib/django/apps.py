"""The Django app ``"eventmq_contrib.django"``: commands, permissions, and the outbox's table."""

from __future__ import annotations

import importlib

from django.apps import AppConfig

__all__ = ["EventMQConfig"]


class EventMQConfig(AppConfig):
    """Entry of ``INSTALLED_APPS``; its label is ``eventmq``."""

    name = "eventmq_contrib.django"
    label = "eventmq"
    verbose_name = "EventMQ"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the tasks framework, which registers its checks."""
        importlib.import_module("eventmq_contrib.django.framework")
