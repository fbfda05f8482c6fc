"""Run broker, worker and scheduler together, for development: ``dev``."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from eventmq.cli.command import DONE, FAILED, Command
from eventmq.cli.hangup import at_hangup
from eventmq.cli.logs import name_process
from eventmq.cli.output import paint, printable
from eventmq.cli.processes import Child, ChildFailed, interrupt_at_signals, ready_fields
from eventmq.cli.target import takes_app, takes_log_format, takes_queues
from eventmq.errors import EventMQError

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventmq.cli.target import Target

__all__ = ["COMMANDS", "FileWatcher"]

#: Milliseconds without a change after which changes are reported, so that saving many files is one
#: change; and milliseconds between two checks of the watching thread whether it has to end.
QUIET_MS, END_MS = 200, 100

#: Names of folders that are not watched, in addition to those that begin with a dot.
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

_SETTINGS = frozenset({"eventmq.toml", "pyproject.toml"})


class FileWatcher:
    """File watcher: reports changes of files in a daemon thread, from now on until `stop`.

    Args:
        folder: The folder to watch.
        on_change: Called in the thread with the paths that changed, appeared or vanished, once
            there was no change for `QUIET_MS`.

    Raises:
        EventMQError: watchfiles is not installed, or the system's limit of watches is reached.
    """

    def __init__(self, folder: Path, on_change: Callable[[list[str]], object]) -> None:
        try:
            from watchfiles import watch
        except ImportError as error:
            msg = "eventmq dev --reload needs watchfiles: pip install '.[reload]'"
            raise EventMQError(msg) from error
        self._folder = folder.resolve()
        self._on_change = on_change
        self._stopped = threading.Event()
        self._changes = watch(
            self._folder, watch_filter=self._is_watched, step=QUIET_MS, stop_event=self._stopped,
            rust_timeout=END_MS, yield_on_timeout=True, ignore_permission_denied=True,
        )  # fmt: skip
        try:
            next(self._changes)  # no change is missed from here on
        except OSError as error:
            raise EventMQError(f"{folder} cannot be watched: {error}") from error
        self._thread = threading.Thread(target=self._watch, name="eventmq-watch", daemon=True)
        self._thread.start()

    def _is_watched(self, _: object, path: str) -> bool:
        """Return whether a file is code or settings, outside folders with third-party code."""
        *parents, name = Path(path).relative_to(self._folder).parts
        if any(part in _SKIPPED or part[0] == "." for part in parents):
            return False
        if not name.endswith(".py"):
            return not parents and name in _SETTINGS
        above = (self._folder.joinpath(*parents[:n]) for n in range(len(parents) + 1))
        return not any((folder / "pyvenv.cfg").exists() for folder in above)

    def _watch(self) -> None:
        for changes in self._changes:
            if changes:
                self._on_change(
                    sorted({os.path.relpath(path, self._folder) for _, path in changes})
                )

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._stopped.set()
        self._thread.join()


#: Seconds within which each process must be ready: a worker imports the whole app.
START_TIMEOUT = 90.0

#: Seconds for the broker to end; for the others, in addition to their grace.
STOP_TIMEOUT = 5.0

#: Maximum number of file names in a line about a change.
MAX_NAMED = 3

_COLOURS = {"broker": "cyan", "worker": "magenta", "beat": "blue", "dev": "yellow"}

#: Colour of gateways.
_COLOUR = "green"


@click.command(cls=Command, exits={FAILED: "one of them cannot start, or ended by itself"})
@takes_queues
@click.option("-c", "--concurrency", type=click.IntRange(1), metavar="N", help="Jobs at once.")
@click.option("--pool", metavar="NAME", help="Worker pool; default: the setting pool.")
@click.option("--bind", metavar="URL", help="Address of the broker; default: the app's broker.")
@click.option("--data-dir", metavar="DIR", help="Data directory of the broker; default: .eventmq.")
@click.option("--reload", is_flag=True, help="Restart the worker when code changes.")
@click.option(
    "--gateway", "gateways", metavar="NAME[=URL]", multiple=True,
    help="Also run this gateway, at its default address or the given one. Repeatable.",
)  # fmt: skip
@takes_log_format
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

    Log lines go to stderr, each with the name of its process, in JSON as "process". A line with
    "ready" is printed on stdout when all are ready. Ctrl-C stops all. SIGHUP is passed on to all.

    With --reload all processes except the broker restart when a Python file in or below the working
    directory, or a settings file in it, changes; running jobs end first, within the grace. That
    needs the extra "reload": pip install '.[reload]'.
    """
    settings = target.serving().app.settings
    if bind is None and settings.source("broker") != "default":
        bind = settings.broker[0]
    verbosity = ["-v"] * target.verbosity + ["-q"] * -target.verbosity
    app = ["-A", target.app_name or "", *(f"-I{name}" for name in target.imports)]
    app += ["--log-format", settings.log_format]
    write = _in_json if settings.log_format == "json" else _prefixed
    broker = [*verbosity, "broker", *app, *_arguments(bind=bind, data_dir=data_dir)]
    worker = [*verbosity, "worker", *app, *_arguments(**options)]
    beat = [*verbosity, "beat", *app]
    interrupt_at_signals()
    try:
        stop_timeout = settings.shutdown_grace + STOP_TIMEOUT
        restartable = {"worker": worker, "beat": beat}
        gateway_arguments = dict(_gateway(text, verbosity, app) for text in gateways)
        _ProcessGroup(
            restartable, gateway_arguments, write, stop_timeout=stop_timeout, reload=reload
        ).run(broker)  # fmt: skip
    except KeyboardInterrupt:
        if write is _in_json:
            write("dev", "stopped")
        else:
            click.echo("stopped", err=True)
    return DONE


def _arguments(**options: str | int | None) -> list[str]:
    """Return options in the form of a command line."""
    chosen = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return [text for name, value in chosen.items() for text in (f"--{name}", str(value))]


def _gateway(text: str, verbosity: list[str], app: list[str]) -> tuple[str, list[str]]:
    """Return the name of a gateway, and the arguments of the program that run it."""
    name, _, address = text.partition("=")
    return name, [*verbosity, "gateway", name, *app, *_arguments(bind=address or None)]


class _ProcessGroup:
    """A broker, and processes with the app's code that restart when the code changes.

    Args:
        restartable: Names and arguments, in the order of their start; they start together.
        gateways: Names and arguments of gateways; when one ends, the others continue.
        write: Writes a line of a process, whose name it gets.
        stop_timeout: Seconds for one process to end.
        reload: Restart them when code changes; one may then fail without ending the others.
    """

    def __init__(
        self,
        restartable: dict[str, list[str]],
        gateways: dict[str, list[str]],
        write: Callable[[str, str], None],
        *,
        stop_timeout: float,
        reload: bool,
    ) -> None:
        self._restartable = {**restartable, **gateways}
        self._gateways = gateways
        self._write = write
        self._stop_timeout = stop_timeout
        self._reload = reload
        self._events: SimpleQueue[Child | list[str] | None] = SimpleQueue()
        self._running: list[Child] = []
        self._address = ""
        self._broker: Child

    def run(self, broker: list[str]) -> None:
        """Run all until one ends, which is an error; then stop the others."""
        with ExitStack() as stack:
            if self._reload:
                watcher = FileWatcher(Path.cwd(), self._events.put)
                stack.callback(watcher.stop)
            at_hangup(partial(self._events.put, None), _interrupt)
            self._broker = self._child("broker", broker)
            stack.callback(self._broker.stop, STOP_TIMEOUT)
            ready = self._broker.wait_ready(START_TIMEOUT)
            self._address = ready_fields(ready)["main"]
            stack.callback(self._stop)
            self._start()
            click.echo(ready)
            while True:
                self._handle(self._events.get())

    def _child(self, name: str, arguments: list[str]) -> Child:
        return Child(name, arguments, on_line=partial(self._write, name), on_end=self._events.put)

    def _start(self) -> None:
        for name, arguments in self._restartable.items():
            child = self._child(name, [*arguments, "--broker", self._address])
            self._running.append(child)
        for child in list(self._running):
            ready = child.wait_ready(START_TIMEOUT)
            if child.name in self._gateways:
                self._log(ready)

    def _stop(self) -> None:
        """Stop all processes; after Ctrl-C without waiting."""
        interrupted = False
        while self._running:
            child = self._running[-1]
            try:
                child.stop(self._stop_timeout)
            except KeyboardInterrupt:  # between two steps, which are then repeated
                interrupted, self._stop_timeout = True, 0.0
                continue
            self._running.pop()
            if child.interrupted:
                interrupted, self._stop_timeout = True, 0.0
        if interrupted:
            raise KeyboardInterrupt

    def _handle(self, event: Child | list[str] | None) -> None:
        """Handle the end of a process, changes of files, or SIGHUP (None)."""
        if event is None:
            for child in (self._broker, *self._running):
                child.hang_up()
        elif isinstance(event, list):
            self._replace(event)
        elif event in self._running and event.name in self._gateways:
            self._running.remove(event)
            self._log(f"{event.exit_report()}; the others continue")
        elif event.name == "broker" or (event in self._running and not self._reload):
            raise ChildFailed(event.exit_report())
        elif event in self._running:
            self._running.remove(event)
            self._log(f"{event.exit_report()}; it starts again when a file changes")

    def _replace(self, paths: list[str]) -> None:
        """Restart the processes with the new code, after running jobs have ended."""
        more = f" and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else ""
        names = " and ".join(self._restartable)
        try:
            self._log(f"{', '.join(paths[:MAX_NAMED])}{more} changed; restarting the {names}")
            self._stop()
        except KeyboardInterrupt:
            self._stop_timeout = 0.0
            raise
        try:
            self._start()
        except ChildFailed as error:
            self._stop()
            self._log(f"{error}; it starts again when a file changes")
        else:
            self._log(f"the {names} {'have' if len(self._restartable) > 1 else 'has'} the new code")

    def _log(self, text: str) -> None:
        self._write("dev", f"{printable(text)}\n")


def _interrupt() -> None:
    """End as at Ctrl-C, because the terminal is gone."""
    signal.default_int_handler(signal.SIGINT, None)


def _prefixed(name: str, line: str) -> None:
    """Write a line to stderr with the name of its process."""
    prefix = paint(f"{name} |", _COLOURS.get(name, _COLOUR), err=True)
    click.echo(f"{prefix} {line}", err=True, nl=False)


def _in_json(name: str, line: str) -> None:
    """Write a line to stderr as JSON that names its process."""
    click.echo(name_process(line, name), err=True)


COMMANDS = (dev,)
