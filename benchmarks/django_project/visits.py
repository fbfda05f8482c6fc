"""Requests of the view in this process: prints the milliseconds of each as JSON."""

from __future__ import annotations

import json
import sys
import time

import django
from django.db import connection
from django.test import Client

#: Requests before those that count.
_WARMING = 20


def main(requests: int) -> None:
    """Send requests one after the other, each after the end of the task before it."""
    django.setup()
    from benchmarks.django_project.tasks import started

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (number INTEGER)")
    client, rows = Client(), []
    for number in range(_WARMING + requests):
        begin = time.perf_counter()
        answer = client.get(f"/{number}/").json()
        taken = time.perf_counter() - begin
        result = started.get_result(answer["task"])
        while not result.is_finished:
            time.sleep(0.001)
            result.refresh()
        rows.append([(result.return_value - answer["enqueued"]) * 1000, taken * 1000])
    print(json.dumps(rows[_WARMING:]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
