"""Tasks of orders, for Django 6 and for the backport."""

from __future__ import annotations

from typing import TYPE_CHECKING

import django
from django.utils.timezone import now

from eventmq import fixed
from eventmq_contrib.django import task_options
from orders.models import Order

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

if TYPE_CHECKING:
    from django.tasks import TaskContext


@task(queue_name="mail", takes_context=True)
@task_options(retries=2, retry_policy=fixed(delay=0.5), timeout=60)
def confirm(context: TaskContext, number: int) -> str:
    """Confirm an order; a second run of the same order changes nothing."""
    order = Order.objects.get(pk=number)
    if not order.pieces:
        msg = f"an order of nothing, tried {context.attempt} times"
        raise ValueError(msg)
    Order.objects.filter(pk=number, confirmed=None).update(confirmed=now())
    return f"confirmed to {order.customer}"
