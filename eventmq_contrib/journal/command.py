"""The commands ``eventmq journal``, ``journal compact`` and ``journal forget``."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli import (
    DONE,
    FAILED,
    Command,
    at_hangup,
    read_timestamp,
    takes_log_format,
    takes_target,
)
from eventmq.errors import BrokerUnavailable
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventmq import EventMQ
    from eventmq.cli import Target
    from eventmq_contrib.journal.drain import Drain
    from eventmq_contrib.journal.sources import Source

__all__ = ["journal", "run"]

logger = logging.getLogger("eventmq.journal")

#: Seconds between two checks for new events.
POLL = 0.2

#: Seconds between two attempts while the broker is unavailable.
RETRY_AFTER = 2.0

#: Seconds within which the broker of a store must answer.
TIMEOUT = 2.0


@click.group(
    invoke_without_command=True,
    epilog="Exit codes: 0 done, 1 the store cannot be read, the folder cannot be written, another "
    "journal is at work or pyarrow is missing, 2 wrong usage, or a redactor that cannot be "
    "imported, 3 broker not reachable.",
)
@click.option("--data-dir", metavar="DIR", help="Read the store in the broker's data directory.")
@click.option(
    "--store", metavar="URL", help="Read this store, named as for the broker: postgresql://..."
)
@click.option(
    "--out", "--dir", "out", metavar="DIR", default="journal", show_default=True,
    help="The folder of the Parquet files.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Seal the present events and end.")
@click.option(
    "--seal-after", type=click.FloatRange(0.1), metavar="SECONDS",
    help="Seal a file after this time, a minute by default: streams see only sealed events.",
)  # fmt: skip
@takes_log_format
@takes_target
def journal(
    target: Target, data_dir: str | None, store: str | None, out: str, seal_after: float | None, *,
    once: bool,
) -> int:  # fmt: skip
    """Keep all events of a broker in Parquet files, until SIGTERM or Ctrl-C.

    With --data-dir, or if the working directory has a data directory, the store is read directly,
    even while no broker runs; so is the store of --store, from any machine. Otherwise the events
    are requested from the broker, from anywhere. The broker deletes events that are sealed in a
    file, so there is one journal per broker. The command prints a line with "ready" on stdout.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return DONE

    need("pyarrow.parquet", user="eventmq journal")
    with _source(target, data_dir, store) as (source, app):
        return _run_journal(source, app, Path(out), age=seal_after, once=once)


@contextlib.contextmanager
def _source(
    target: Target, data_dir: str | None, store: str | None
) -> Iterator[tuple[Source, EventMQ]]:
    """Yield the source of the events, and close it at the end."""
    from eventmq import EventMQ
    from eventmq_contrib.journal.sources import BrokerSource, StoreSource

    app = target.serving().app
    with contextlib.ExitStack() as stack:
        stack.callback(app.close)
        directory = Path(data_dir or app.settings.data_dir)
        local = target.broker is None and app.settings.source("broker") == "default"
        if data_dir is None and store is None and not (local and directory.is_dir()):
            yield BrokerSource(app), app
            return
        # The app itself is in use once it has made a store, and its broker is not known before.
        own = stack.enter_context(EventMQ("journal", data_dir=str(directory)))
        reader = own.event_log(store or app.settings.store)
        stack.callback(reader.close)
        addresses = reader.addresses()
        overrides: dict[str, Any] = {"submit_timeout": TIMEOUT}
        if local and "main" in addresses:
            overrides["broker"] = addresses["main"]
        app.override(**overrides)
        yield StoreSource(reader, app, app.clock), app


def _run_journal(source: Source, app: EventMQ, out: Path, *, age: float | None, once: bool) -> int:
    from eventmq_contrib.journal.drain import AGE, Drain
    from eventmq_contrib.journal.folder import JournalFolder
    from eventmq_contrib.journal.redactor import redactor_of

    redactor = redactor_of(app)
    ended = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: ended.set())
    at_hangup(lambda: None, ended.set)
    folder = JournalFolder(out)
    folder.open()
    with contextlib.closing(folder):
        drain = Drain(source, folder, app.clock, age=age or AGE, redactor=redactor)
        drain.start()
        click.echo(f"ready broker={source.broker_id} out={out} after={drain.sealed}")
        first = drain.sealed
        run(drain, ended.wait, once=once)
        n = drain.sealed - first
        click.echo(f"sealed {n} events in {drain.files} files, up to {drain.sealed}", err=True)
    return DONE


def run(drain: Drain, wait: Callable[[float], bool], *, once: bool) -> None:
    """Copy events until the end.

    Args:
        drain: A started drain.
        wait: Waits for a number of seconds or until the end; returns whether to end.
        once: End when there are no more events.
    """
    pause = 0.0
    while not wait(pause):
        try:
            pause = 0.0 if drain.step() else POLL
        except BrokerUnavailable as error:
            if once:
                raise
            logger.warning("the broker does not answer; the journal waits for it: %s", error)
            pause = RETRY_AFTER
            continue
        if once and pause:
            break
    drain.finish()


@journal.command(cls=Command, exits={FAILED: "a file cannot be read or written"})
@click.option(
    "--out", "--dir", "out", metavar="DIR", default="journal", show_default=True,
    help="The folder of the journal.",
)  # fmt: skip
@click.option(
    "--to", metavar="DIR", help="The folder of the larger files. Default: compacted, beside it."
)
def compact(out: str, to: str | None) -> int:
    """Write the small files of hours that have ended as few large ones.

    The journal's own files stay unchanged. The larger files are valid once the file manifest.json
    of their folder lists them; readers may read either. If there is nothing to compact, nothing is
    written.
    """
    from eventmq.sdk import SystemClock
    from eventmq_contrib.journal.compaction import Compaction

    need("pyarrow.parquet", user="eventmq journal")
    compaction = Compaction(Path(out), Path(to) if to else None)
    n, files = compaction.run(SystemClock().now())
    click.echo(f"compacted {n} files into {files}" if files else "nothing to compact")
    return DONE


@journal.command(cls=Command, exits={FAILED: "there is no journal, or it cannot be written"})
@click.option(
    "--before", metavar="WHEN", callback=read_timestamp,
    help="Remove the files of hours that ended before then: 52w ago, or 2025-11-20. Default: "
    "none.",
)  # fmt: skip
@click.option(
    "--out", "--dir", "out", metavar="DIR", default="journal", show_default=True,
    help="The folder of the journal.",
)  # fmt: skip
@click.option(
    "--to", metavar="DIR", help="The folder of the larger files. Default: compacted, beside it."
)
@click.option(
    "--trim-seals", is_flag=True,
    help="Let the journal remove the entries of these files from its seal log as well. Do not use "
    "this if a copy elsewhere keeps the files: an audit could no longer prove it.",
)  # fmt: skip
def forget(before: float | None, out: str, to: str | None, *, trim_seals: bool) -> int:
    """Remove the oldest files, and record that the journal begins later.

    An audit needs this record to know that nothing else is missing. The journal may be running.
    Without --before no file is removed: events that are missing at the beginning count as forgotten
    from then on.
    """
    from eventmq_contrib.journal.retention import forget as forget_files

    n, begins = forget_files(
        Path(out), Path(to) if to else None, before=before, trim_seals=trim_seals
    )
    click.echo(f"removed {n} files")
    for broker, first in begins.items():
        click.echo(f"the events of the broker {broker} begin with {first}")
    return DONE
