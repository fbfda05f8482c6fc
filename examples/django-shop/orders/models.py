"""Orders."""

from django.db import models


class Order(models.Model):
    """An order, and the task that confirms it."""

    customer = models.EmailField()
    pieces = models.PositiveIntegerField(default=1)
    task = models.CharField(max_length=64, editable=False)
    confirmed = models.DateTimeField(null=True, editable=False)

    def __str__(self) -> str:
        return f"{self.pieces} for {self.customer}"
