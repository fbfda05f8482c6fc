"""The task: its result is when it started."""

from __future__ import annotations

import time

import django

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


@task
def started(_number: int) -> float:
    return time.time()
