"""Run a worker: ``worker``."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import FAILED
from eventmq.cli.declared import DeclaredOptions
from eventmq.cli.hangup import restart_process, run_restartable
from eventmq.cli.logs import LOADER
from eventmq.cli.output import printable
from eventmq.cli.target import (
    options_of,
    takes_log_format,
    takes_metrics_bind,
    takes_queues,
    takes_target,
)
from eventmq.registry.names import WORKER_POOL
from eventmq.titles import set_title

if TYPE_CHECKING:
    from eventmq.app import EventMQ
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]

#: Number of new objects after which the garbage collector runs; Python's default is 700.
COLLECT_AFTER = 10_000

logger = logging.getLogger("eventmq.worker")


def _slots(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Parse N or MIN-MAX."""
    if value is None:
        return None
    low, dash, high = value.partition("-")
    numbers = [int(text) if text.isascii() and text.isdigit() else 0 for text in (low, high)]
    if not numbers[0] or (dash and numbers[1] < numbers[0]):
        raise click.BadParameter(f"{value!r} is neither a whole number from 1 nor two such as 2-8")
    return (numbers[0], numbers[1]) if dash else (0, numbers[0])


@click.command(cls=DeclaredOptions, kind=WORKER_POOL, exits={FAILED: "the pool cannot start"})
@takes_queues
@click.option(
    "-c", "--concurrency", metavar="N|MIN-MAX", callback=_slots,
    help="Jobs that run at once; default: that of the pool, such as one per CPU. With two numbers, "
    "slots are added and removed as there is work.",
)  # fmt: skip
@click.option(
    "--pool", metavar="NAME", help="Worker pool, one of those below; default: the setting pool."
)
@click.option(
    "--allow-callables", metavar="PATTERN", multiple=True,
    help="Also run functions that are not tasks, if their dotted path matches, as in "
    '"shop.jobs.*". Repeatable.',
)  # fmt: skip
@click.option(
    "--grace",
    "shutdown_grace",
    type=float,
    metavar="S",
    help="Seconds that running jobs get to end at SIGTERM.",
)
@click.option(
    "--cancel-grace",
    type=float,
    metavar="S",
    help="Seconds that a cancelled running job gets to end.",
)
@click.option(
    "--max-abandoned", "max_abandoned_threads", type=click.IntRange(0), metavar="N",
    help="Number of threads with jobs that do not end at which the worker restarts.",
)  # fmt: skip
@click.option(
    "--pool-option", "pool_options", metavar="K=V", multiple=True,
    help="An option of the pool. Repeatable.",
)  # fmt: skip
@takes_metrics_bind
@click.option(
    "--insecure", is_flag=True, help="Allow a --metrics-bind that other machines can reach."
)
@click.option("--check", is_flag=True, help="Load the app and the options of its pool, then exit.")
@takes_log_format
@takes_target
def worker(
    target: Target,
    *,
    allow_callables: tuple[str, ...],
    pool_options: tuple[str, ...],
    concurrency: tuple[int, int] | None,
    declared: dict[str, Any],
    check: bool,
    insecure: bool,
    **settings: Any,
) -> None:
    """Run the jobs of an app's tasks.

    The worker lists its tasks, and prints "ready" on stdout when it is connected to the broker; it
    waits for a broker that has not started yet. At SIGTERM or Ctrl-C it takes no more jobs, hands
    back those that have not started, and waits --grace seconds for running ones; a second signal
    stops it at once.

    At SIGHUP it restarts: it ends as at SIGTERM, then runs its command line again in the same
    process, with the current code, and prints "ready" again. If the new code cannot be loaded, it
    continues with the old code and logs the reason. It also restarts after --max-abandoned
    unresponsive threads.
    """
    if not target.app_name:
        raise click.UsageError("a worker needs an app: -A module[:attribute]")
    options = {**options_of(pool_options, "--pool-option"), "loader": LOADER, **declared}
    if concurrency is not None:
        settings["min_concurrency"], settings["concurrency"] = concurrency
    app, path = target.serving(
        allow_callables=allow_callables or None, insecure=insecure or None, **settings
    )
    _list_tasks(app)

    def ready() -> None:
        click.echo(_ready_line(app))
        runner.notifier.ready(f"runs jobs of {app.name}")

    runner = app.make_worker(path=path, pool_options=options, on_ready=ready)
    if check:
        runner.end()
        return
    set_title("worker", printable(app.name))
    _tune_collector()
    end_metrics = app.serve_metrics(runner.metrics, app.settings.metrics_bind)
    try:
        run_restartable(runner, "worker")
    finally:
        end_metrics()
    if runner.needs_restart:
        restart_process()


def _tune_collector() -> None:
    """Exclude imported objects from garbage collection, and run it less often.

    A thousand coroutines are some ten thousand live objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _ready_line(app: EventMQ) -> str:
    from eventmq.settings import describe

    shown = {row["name"]: row["value"] for row in describe(app.settings)}
    return printable(f"ready app={app.name} pool={shown['pool']} queues={shown['queues']}")


def _list_tasks(app: EventMQ) -> None:
    """Log the tasks of the worker, and which of them are in a queue that it does not serve."""
    served = {name for _, name in app.settings.queues}
    if not app.tasks and not app.settings.allow_callables:
        logger.warning("the app has no tasks; use -I MODULE to import modules with tasks")
    for name, task in sorted(app.tasks.items()):
        queue = task.declared.queue or app.settings.queue_of(name)
        missing = "" if queue in served else ", which this worker does not serve: see -Q"
        logger.info("task %s, queue %s%s", printable(name), printable(queue), missing)


COMMANDS = (worker,)
