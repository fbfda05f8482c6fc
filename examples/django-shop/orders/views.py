"""The page of the shop, and that of one order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.forms import ModelForm
from django.http import JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET

from orders.models import Order
from orders.tasks import confirm

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


class OrderForm(ModelForm):
    """What a customer enters."""

    class Meta:
        """The fields."""

        model = Order
        fields = ("customer", "pieces")


def orders(request: HttpRequest) -> HttpResponse:
    """Show the form and the last orders; take an order."""
    form = OrderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            placed = form.save()
            result = confirm.enqueue(placed.pk)  # sent if this is committed
            placed.task = result.id
            placed.save()
        return redirect("orders")
    last = Order.objects.order_by("-pk")[:10]
    return render(request, "orders/page.html", {"form": form, "orders": last})


@require_GET
def order(_: HttpRequest, number: int) -> HttpResponse:
    """Answer with the state of an order, as its task has it."""
    found = get_object_or_404(Order, pk=number)
    result = confirm.get_result(found.task)
    answer = {"status": result.status, "attempts": result.attempts, "text": ""}
    if result.status == "SUCCESSFUL":
        answer["text"] = result.return_value
    elif result.errors:
        answer["text"] = result.errors[-1].traceback.strip().splitlines()[-1]
    return JsonResponse(answer)
