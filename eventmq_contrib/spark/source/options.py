"""Options of the data source, checked, and the connection to a broker that they name.

Spark passes options as text and ignores their case. They are visible in plans and on the web page
of a query, so no option takes key material: keys are named by the paths of files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from eventmq.errors import SettingsError, did_you_mean
from eventmq.sdk import option, options_of

if TYPE_CHECKING:
    from eventmq import EventMQ

__all__ = [
    "IN_FLIGHT",
    "Connection",
    "ReadOptions",
    "StreamOptions",
    "WriteOptions",
    "connected",
    "parse_timestamp",
    "read_options",
]


#: Maximum number of unconfirmed jobs of a Spark task.
IN_FLIGHT = 4000

_T = TypeVar("_T", bound="Connection")

# A text as long as a key, with neither a folder nor a suffix, is a key, not a path.
_KEY_FILE: dict[str, Any] = {
    "allowed": "the path of a key file: key material would show in plans",
    "pattern": r"^(?![^/\\]{40,}$).",
}


def _are_distinct(names: tuple[str, ...]) -> bool:
    return len(set(names)) == len(names) > 0


_COLUMNS: dict[str, Any] = {"allowed": "columns, each once", "check": _are_distinct}


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Options that name a broker, shared by all uses of one.

    Attributes:
        broker: URL, or several with commas; by default as in the settings of the process.
        key: Path of the secret key, the same on every machine.
        broker_key: Path of the broker's public key, or several as in the setting broker_key_file.
        timeout: Seconds to wait for a receipt or an answer.
    """

    broker: str | None = option(None, allowed="the URL of a broker", min_length=1)
    key: str | None = option(None, **_KEY_FILE)
    broker_key: str | None = option(None, name="brokerKey", **_KEY_FILE)
    timeout: float = option(30.0, allowed="seconds", gt=0)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Connection):
    """Options of ``spark.read``.

    Attributes:
        table: Name of the table.
        journal: Folder of a journal, instead of a broker.
        queue: Only jobs of this queue.
        task: Only jobs of this task.
    """

    table: Literal["events", "jobs", "failed", "outcomes", "queues"] = option(
        "events", parse=str.lower
    )
    journal: str | None = option(None, allowed="the folder of a journal", min_length=1)
    queue: str | None = option(None, allowed="the name of a queue", min_length=1)
    task: str | None = option(None, allowed="the name of a task", min_length=1)


@dataclass(frozen=True, kw_only=True)
class StreamOptions(Connection):
    """Options of ``spark.readStream``.

    Attributes:
        journal: Folder of a journal.
        start: ``earliest``, or ``latest``: only events that are sealed from now on.
        at_once: Maximum number of events of a batch; 0 for no limit.
    """

    journal: str | None = option(None, allowed="the folder of a journal", min_length=1)
    start: Literal["earliest", "latest"] = option(
        "earliest", name="startingOffset", parse=str.lower
    )
    at_once: int = option(0, name="maxEventsPerTrigger", ge=1)


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Connection):
    """Options of ``df.write`` and ``df.writeStream``.

    Attributes:
        action: ``submit`` jobs, or ``replay`` failed ones by the columns job_id and attempt.
        task: Name of the task of all jobs.
        arguments: Columns that are the positional arguments, in order.
        keywords: Columns that are keyword arguments.
        ids: Columns from whose values the id of a job is derived.
        id_space: Name within which the keys are unique; None for the name of the task.
        id_time: A timestamp, or a column with one, with which derived ids begin.
        in_flight: Maximum number of unconfirmed jobs, per Spark task.
        rate: Jobs per second, per Spark task; 0.0 for no limit.
        report: Path of a file for the counts, written by the driver after the last job.
        queue: This option and those that follow are described in `eventmq.task.CallOptions`.
    """

    action: Literal["submit", "replay"] = option("submit", parse=str.lower)
    task: str | None = option(None, allowed="the name of a task", min_length=1)
    arguments: tuple[str, ...] | None = option(None, name="argColumns", **_COLUMNS)
    keywords: tuple[str, ...] | None = option(None, name="kwargColumns", **_COLUMNS)
    ids: tuple[str, ...] | None = option(None, name="idColumns", **_COLUMNS)
    id_space: str | None = option(None, name="idSpace", allowed="any name", min_length=1)
    id_time: str | None = option(
        None, name="idTime", allowed="a column, or a timestamp as 2026-01-31T12:00Z", min_length=1
    )
    in_flight: int = option(IN_FLIGHT, name="maxInFlight", ge=1)
    rate: float = option(0.0, allowed="jobs per second, above 0", gt=0)
    report: str | None = option(None, allowed="the path of a file", min_length=1)
    queue: str | None = option(None, allowed="the name of a queue", min_length=1)
    priority: int | None = option(None, ge=0, le=255)
    retries: int | None = option(None, ge=0)
    run_limit: float | None = option(None, name="runTimeout", allowed="seconds", gt=0)
    expires: float | None = option(None, allowed="seconds", gt=0)
    ignore_result: bool | None = option(None, name="ignoreResult")

    def call(self) -> dict[str, Any]:
        """Return the options of each call."""
        options = {
            "queue": self.queue, "priority": self.priority, "retries": self.retries,
            "timeout": self.run_limit, "expires": self.expires,
            "ignore_result": self.ignore_result,
        }  # fmt: skip
        return {name: value for name, value in options.items() if value is not None}


def read_options(kind: type[_T], options: Mapping[str, str], *, subject: str) -> _T:
    """Check and return the options that Spark passes as text.

    Args:
        kind: Class of the options.
        options: Names, in any case, and texts.
        subject: Name of the use, for messages.

    Raises:
        SettingsError: An option is unknown, or its value is not allowed.
    """
    fields_by_name = {field.name.lower(): field for field in options_of(kind).values()}
    values: dict[str, Any] = {}
    for name, text in options.items():
        # The argument of load(path): the folder of a journal.
        declared = fields_by_name.get("journal" if name.lower() == "path" else name.lower())
        if declared is None:
            hint = did_you_mean(name, options_of(kind))
            raise SettingsError(f'{subject} of "eventmq" takes no option {name!r}; {hint}')
        try:
            values[declared.field] = declared.read(text)
        except ValueError as error:
            secret = declared.name in {"key", "brokerKey"}
            shown = "the given text" if secret else f"{text[:80]!r}"
            raise SettingsError(
                f"option {declared.name!r} cannot be {shown}; allowed is: {error}"
            ) from None
    return kind(**values)


def parse_timestamp(text: str) -> float | None:
    """Return the Unix time of an ISO timestamp, None for another text; UTC is the default zone."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return time.timestamp()


@contextlib.contextmanager
def connected(options: Connection) -> Iterator[EventMQ]:
    """Yield an app that talks to the broker of the options, and close it at the end.

    Options that are left out have the values of the settings of the machine.

    Raises:
        SettingsError: A value is not allowed, or a key file cannot be read.
    """
    from eventmq import EventMQ

    settings: dict[str, Any] = {
        "broker": options.broker.split(",") if options.broker else None,
        "key_file": options.key,
        "broker_key_file": options.broker_key,
        "submit_timeout": options.timeout,
    }
    app = EventMQ("spark", **{name: value for name, value in settings.items() if value is not None})
    try:
        if "memory://" in app.settings.broker:
            raise SettingsError(
                "the broker memory:// exists in one process, and Spark's are others; name one "
                'that they reach: option("broker", "tcp://127.0.0.1:47291")'
            )
        yield app
    finally:
        app.close()
