"""Tests of orders, without a broker."""

from django.test import TestCase

from eventmq_contrib.django.testing import run_jobs
from orders.models import Order


class Orders(TestCase):
    """Orders, from the form to the confirmation."""

    def _order(self, pieces: int) -> Order:
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/", {"customer": "a@example.org", "pieces": pieces})
        return Order.objects.get()

    def test_an_order_is_confirmed(self) -> None:
        """The task runs when it was sent."""
        order = self._order(3)
        self.assertIsNone(order.confirmed)
        self.assertEqual(1, run_jobs())
        order.refresh_from_db()
        self.assertIsNotNone(order.confirmed)
        answer = self.client.get(f"/{order.pk}/").json()
        self.assertEqual("confirmed to a@example.org", answer["text"])

    def test_an_order_that_is_refused_sends_nothing(self) -> None:
        """The form says why."""
        answer = self.client.post("/", {"customer": "nobody", "pieces": 1})
        self.assertContains(answer, "valid email")
        self.assertEqual(0, run_jobs())
