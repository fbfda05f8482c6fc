"""Models that tasks write."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    name = models.TextField()

    def __str__(self) -> str:
        return self.name


class Seen(models.Model):
    """A signal that a worker got."""

    job = models.TextField()
    signal = models.TextField()
    status = models.TextField()
    worker = models.TextField()
    attempt = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.signal} {self.status}"
