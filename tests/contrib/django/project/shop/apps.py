"""An app that uses its database while Django starts, as some do."""

from __future__ import annotations

import os

from django.apps import AppConfig
from django.db import connections


class ShopConfig(AppConfig):
    name = "tests.contrib.django.project.shop"
    label = "shop"

    def ready(self) -> None:
        if alias := os.environ.get("PROJECT_EAGER"):
            connections[alias].ensure_connection()
