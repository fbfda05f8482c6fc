"""Broker, worker and scheduler together, for developing: ``dev``."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

import click

from eventmq.cli.command import DONE, FAILED, Command
from eventmq.cli.output import paint, printable
from eventmq.cli.processes import Child, ChildFailed, interrupt_at_signals, ready_fields
from eventmq.cli.target import takes_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.cli.target import Target

__all__ = ["COMMANDS", "Watcher", "snapshot"]


#: Seconds between two looks: a thousand files take about 5 ms.
INTERVAL = 0.25

#: Files that are looked at; in a larger folder those found first.
MOST = 20_000

#: Folders that hold other people's code, or none.
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages"})

_SETTINGS = frozenset({"eventmq.toml", "pyproject.toml"})

Snapshot = dict[str, tuple[int, int]]


def snapshot(folder: Path) -> Snapshot:
    """Return path from the folder on -> time of change and size, of each file that is watched."""
    found: Snapshot = {}
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        top = place == str(folder)
        folders[:] = sorted(f for f in folders if f not in _PASSED_OVER and f[0] != ".")
        for name in names:
            if name.endswith(".py") or (top and name in _SETTINGS):
                path = os.path.join(place, name)  # noqa: PTH118 - a Path costs ten times as much
                try:
                    status = os.stat(path)  # noqa: PTH116 - as above
                except OSError:  # gone since, or a link to nothing
                    continue
                found[os.path.relpath(path, folder)] = (status.st_mtime_ns, status.st_size)
        if len(found) >= MOST:
            break
    return found


def _differences(before: Snapshot, after: Snapshot) -> list[str]:
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


class Watcher:
    """Watches from its making on, in a daemon thread, until `stop`.

    Args:
        folder: What is watched.
        on_change: Called in the thread with the paths that changed, came or went, once nothing
            has changed for a look: saving many files is one change.
    """

    def __init__(self, folder: Path, on_change: Callable[[list[str]], object]) -> None:
        self._folder = folder
        self._on_change = on_change
        self._stopped = threading.Event()
        self._seen = snapshot(folder)
        self._thread = threading.Thread(target=self._watch, name="eventmq-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        told = last = self._seen
        while not self._stopped.wait(INTERVAL):
            now = snapshot(self._folder)
            if now == last and now != told:
                self._on_change(_differences(told, now))
                told = now
            last = now

    def stop(self) -> None:
        """Watch no more. Idempotent."""
        self._stopped.set()
        self._thread.join()


#: Seconds within which each of them must be ready: a worker imports the whole app.
START_TIMEOUT = 90.0

#: Seconds that the broker gets to end, and the others beside the grace of what they run.
STOP_TIMEOUT = 5.0

#: Files that a line about a change names.
NAMED = 3

_COLOURS = {"broker": "cyan", "worker": "magenta", "beat": "blue", "dev": "yellow"}

#: Of gateways.
_COLOUR = "green"


@click.command(cls=Command, exits={FAILED: "one of them cannot start, or ended by itself"})
@click.option("-Q", "--queues", metavar="NAME:WEIGHT,...", help="Queues of the worker.")
@click.option("-c", "--concurrency", type=click.IntRange(1), metavar="N", help="Jobs at once.")
@click.option("--pool", metavar="NAME", help="What runs jobs: prefork, threads or asyncio.")
@click.option("--bind", metavar="URL", help="Address of the broker; else the app's broker.")
@click.option("--data-dir", metavar="DIR", help="What the broker keeps; else .eventmq.")
@click.option("--reload", is_flag=True, help="Start the worker again when code changes.")
@click.option(
    "--gateway", "gateways", metavar="NAME[=URL]", multiple=True,
    help="Run this gateway too, at its usual address or this one. Repeatable.",
)  # fmt: skip
@takes_app(required=True)
def dev(
    target: Target,
    bind: str | None,
    data_dir: str | None,
    reload: bool,
    gateways: tuple[str, ...],
    **options: str | int | None,
) -> int:
    """Run a broker, a worker and a scheduler together, and gateways.

    Their log lines come on stderr, each with the name of who says it; Ctrl-C ends all. A line with
    "ready" comes on stdout when all are.

    With --reload all but the broker are started again when a Python file in or below the working
    directory, or a settings file in it, changes; what runs ends first, within its grace.
    """
    settings = target.serving().app.settings
    if bind is None and settings.source("broker") != "default":
        bind = settings.broker[0]
    loud = ["-v"] * target.louder + ["-q"] * -target.louder
    app = ["-A", target.app_name or "", *(f"-I{name}" for name in target.imports)]
    broker = [*loud, "broker", *app, *_arguments(bind=bind, data_dir=data_dir)]
    worker = [*loud, "worker", *app, *_arguments(**options)]
    beat = [*loud, "beat", *app]
    interrupt_at_signals()
    try:
        patience = settings.shutdown_grace + STOP_TIMEOUT
        followers = {"worker": worker, "beat": beat}
        others = dict(_gateway(text, loud, app) for text in gateways)
        _Together(followers, others, patience=patience, reload=reload).run(broker)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
    return DONE


def _arguments(**options: str | int | None) -> list[str]:
    """Return options as they are written on a command line."""
    given = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


def _gateway(text: str, loud: list[str], app: list[str]) -> tuple[str, list[str]]:
    """Return the name of a gateway and the arguments that run it."""
    name, _, address = text.partition("=")
    return name, [*loud, "gateway", name, *app, *_arguments(bind=address or None)]


class _Changed(NamedTuple):
    """Files that changed."""

    paths: list[str]


class _Together:
    """A broker and what runs the app's code, which is replaced when that changes.

    Args:
        followers: Name and arguments of each, in the order of their start; they start together.
        gateways: The same of gateways; the end of one harms nobody else.
        patience: Seconds that one gets to end.
        reload: Whether they are replaced, and may fail without ending everything.
    """

    def __init__(
        self,
        followers: dict[str, list[str]],
        gateways: dict[str, list[str]],
        *,
        patience: float,
        reload: bool,
    ) -> None:
        self._followers = {**followers, **gateways}
        self._gateways = gateways
        self._patience = patience
        self._reload = reload
        self._events: SimpleQueue[Child | _Changed] = SimpleQueue()
        self._running: list[Child] = []
        self._address = ""

    def run(self, broker: list[str]) -> None:
        """Run all until one ends, which is an error; leave none behind."""
        with ExitStack() as stack:
            if self._reload:
                watcher = Watcher(Path.cwd(), lambda paths: self._events.put(_Changed(paths)))
                stack.callback(watcher.stop)
            child = self._child("broker", broker)
            stack.callback(child.stop, STOP_TIMEOUT)
            ready = child.wait_ready(START_TIMEOUT)
            self._address = ready_fields(ready)["main"]
            stack.callback(self._stop)
            self._start()
            click.echo(ready)
            while True:
                self._act_on(self._events.get())

    def _child(self, name: str, arguments: list[str]) -> Child:
        return Child(name, arguments, on_line=_Prefixed(name), on_end=self._events.put)

    def _start(self) -> None:
        for name, arguments in self._followers.items():
            child = self._child(name, [*arguments, "--broker", self._address])
            self._running.append(child)
        for child in list(self._running):
            said = child.wait_ready(START_TIMEOUT)
            if child.name in self._gateways:
                self._say(said)

    def _stop(self) -> None:
        """End all of them; once Ctrl-C came nobody waits for the others either."""
        interrupted = False
        while self._running:
            child = self._running[-1]
            try:
                child.stop(self._patience)
            except KeyboardInterrupt:  # between two steps of it, which are taken again
                interrupted, self._patience = True, 0.0
                continue
            self._running.pop()
            if child.interrupted:
                interrupted, self._patience = True, 0.0
        if interrupted:
            raise KeyboardInterrupt

    def _act_on(self, event: Child | _Changed) -> None:
        if isinstance(event, _Changed):
            self._replace(event.paths)
        elif event in self._running and event.name in self._gateways:
            self._running.remove(event)
            self._say(f"{event.exit_report()}; the others go on")
        elif event.name == "broker" or (event in self._running and not self._reload):
            raise ChildFailed(event.exit_report())
        elif event in self._running:
            self._running.remove(event)
            self._say(f"{event.exit_report()}; it starts again when a file changes")

    def _replace(self, paths: list[str]) -> None:
        """Start others with the new code, after what runs has ended."""
        more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
        names = " and ".join(self._followers)
        try:
            self._say(f"{', '.join(paths[:NAMED])}{more} changed; restarting the {names}")
            self._stop()
        except KeyboardInterrupt:
            self._patience = 0.0
            raise
        try:
            self._start()
        except ChildFailed as error:
            self._stop()
            self._say(f"{error}; it starts again when a file changes")
        else:
            self._say(f"the {names} {'have' if len(self._followers) > 1 else 'has'} the new code")

    @staticmethod
    def _say(text: str) -> None:
        _Prefixed("dev")(f"{printable(text)}\n")


class _Prefixed:
    """Writes lines to stderr with the name of who says them."""

    def __init__(self, name: str) -> None:
        self._prefix = paint(f"{name} |", _COLOURS.get(name, _COLOUR), err=True)

    def __call__(self, line: str) -> None:
        click.echo(f"{self._prefix} {line}", err=True, nl=False)


COMMANDS = (dev,)
