"""Tasks, which a worker finds by itself."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime, timezone
from itertools import count

import django
from django.db import connections, transaction
from django.dispatch import receiver

from eventmq import Reject, every, fixed
from eventmq_contrib.django import task_options
from eventmq_contrib.django.framework import task_finished, task_started
from tests.contrib.django.project.shop.models import Order, Seen

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

_calls = count(1)


@receiver([task_started, task_finished])
def keep(sender, task_result, signal, **_):
    if task_result.task.name not in {"watched", "awatched"}:
        return
    Seen.objects.create(
        job=task_result.id,
        signal="started" if signal is task_started else "finished",
        status=task_result.status,
        worker=task_result.worker_ids[-1],
        attempt=task_result.attempts,
    )


@task
def add(a, b=1):
    return a + b


@task
def echo(*args, **kwargs):
    return [list(args), kwargs]


@task
def not_json():
    return object()


@task(takes_context=True)
@task_options(retries=3, retry_policy=fixed(delay=0.05))
def watched(context, failures, kind="ValueError"):
    if context.attempt <= failures:
        raise {"ValueError": ValueError, "Reject": Reject}[kind](f"attempt {context.attempt}")
    result = context.task_result
    return [context.attempt, result.worker_ids, len(result.errors), result.task.priority]


@task
async def awatched(name):
    order = await Order.objects.acreate(name=name)
    return order.name


@task
@task_options(result_ttl=0.2)
def forgotten():
    return 1


@task(queue_name="spare")
@task_options(expires=0.1)
def too_late(a=None, b=None):
    return 1


@task
@task_options(unique="order:{name}")
def once(name):
    return name


@task
def sleep(seconds):
    time.sleep(seconds)


@task(queue_name="mail", priority=3)
@task_options(schedule=every(seconds=0.5))
def tick():
    Order.objects.create(name="tick")


@task(takes_context=True)
def asks(context):
    return asks.get_result(context.task_result.id).status


@task
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@task
def save(name, alias="default"):
    return Order.objects.using(alias).create(name=name).pk


@task
def process_and_connection(alias, processes=1):
    """Return the process, its database session, and how often the process was called.

    Each call waits until so many processes of the worker have a session: one might run all calls.
    """
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (session,) = cursor.fetchone()
        found = 0
        while found < processes:
            cursor.execute(count, [os.environ["PROJECT_NAME"]])
            (found,) = cursor.fetchone()
            cursor.execute("SELECT pg_sleep(0.01)")
    return [os.getpid(), session, next(_calls)]


@task
async def abackend(alias):
    def ask():
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return cursor.fetchone()[0]

    from asgiref.sync import sync_to_async

    first = await sync_to_async(ask)()
    return [first, await sync_to_async(ask)()]


@task
def leave_open(alias):
    transaction.atomic(alias).__enter__()
    Order.objects.using(alias).create(name="left open")


@task
def leave_manual(alias):
    transaction.set_autocommit(False, using=alias)
    Order.objects.using(alias).create(name="left manual")


@task
def now_utc():
    return datetime.now(timezone.utc).isoformat()
