"""The view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.db import connection, transaction
from django.http import JsonResponse
from django.urls import path

from benchmarks.django_project.tasks import started

if TYPE_CHECKING:
    from django.http import HttpRequest


@transaction.atomic
def order(_: HttpRequest, number: int) -> JsonResponse:
    """Write a row and enqueue a task, which is sent after the commit."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])
    enqueued = time.time()
    return JsonResponse({"task": started.enqueue(number).id, "enqueued": enqueued})


urlpatterns = [path("<int:number>/", order)]
