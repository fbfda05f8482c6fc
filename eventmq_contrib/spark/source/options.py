"""Options of the data source, checked, and the connection to a broker that they name.

Spark hands options over as text, without regard to upper and lower case. They show in plans and in
the web page of a query, so no option takes key material: keys are named by the paths of files.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq.errors import SettingsError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from dataclasses import Field

    from eventmq import EventMQ

__all__ = [
    "IN_FLIGHT",
    "Connection",
    "Reading",
    "Streaming",
    "Writing",
    "connected",
    "moment",
    "read_options",
]


#: Jobs that a Spark task has sent and that are not confirmed, at most.
IN_FLIGHT = 4000

_T = TypeVar("_T", bound="Connection")

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def _option(name: str, read: Callable[[str], Any], allowed: str, default: Any = None) -> Any:
    """Return the field of an option."""
    return field(default=default, metadata={"name": name, "read": read, "allowed": allowed})


def _text(value: str) -> str:
    if not value:
        raise ValueError(value)
    return value


def _key_path(value: str) -> str:
    # What has neither a folder nor a suffix and is as long as a key is a key.
    if not value or re.fullmatch(r"[^/\\]{40,}", value):
        raise ValueError("")
    return value


def _names(value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names or len(set(names)) < len(names):
        raise ValueError(value)
    return names


def _count(value: str) -> int:
    number = int(value)
    if number < 1:
        raise ValueError(value)
    return number


def _whole(value: str) -> int:
    number = int(value)
    if number < 0:
        raise ValueError(value)
    return number


def _amount(value: str) -> float:
    number = float(value)
    if not 0.0 < number < float("inf"):
        raise ValueError(value)
    return number


def _flag(value: str) -> bool:
    word = value.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(value)
    return word in _TRUE


def _one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(value)
        return value.lower()

    return read


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Which broker, for all that talk to one.

    Attributes:
        broker: URL, or several with commas; else the settings of the process.
        key: Path of the own secret key, the same on every machine.
        broker_key: Path of the broker's public key.
        timeout: Seconds to wait for a receipt or an answer.
    """

    broker: str | None = _option("broker", _text, "the URL of a broker")
    key: str | None = _option(
        "key", _key_path, "the path of a key file: key material would show in plans"
    )
    broker_key: str | None = _option(
        "brokerKey", _key_path, "the path of a key file: key material would show in plans"
    )
    timeout: float = _option("timeout", _amount, "seconds", 30.0)


@dataclass(frozen=True, kw_only=True)
class Reading(Connection):
    """Options of ``spark.read``.

    Attributes:
        table: What is read.
        journal: Folder of a journal, instead of a broker.
        queue: Of jobs: only of this queue.
        task: Only of this task.
    """

    table: str = _option(
        "table", _one_of("events", "jobs", "failed", "outcomes", "queues"),
        "events, jobs, failed, outcomes or queues", "events",
    )  # fmt: skip
    journal: str | None = _option("journal", _text, "the folder of a journal")
    queue: str | None = _option("queue", _text, "the name of a queue")
    task: str | None = _option("task", _text, "the name of a task")


@dataclass(frozen=True, kw_only=True)
class Streaming(Connection):
    """Options of ``spark.readStream``.

    Attributes:
        journal: Folder of a journal.
        start: ``earliest``, or ``latest``: what is sealed from now on.
        at_once: Events of one batch, at most; 0 for no limit.
    """

    journal: str | None = _option("journal", _text, "the folder of a journal")
    start: str = _option(
        "startingOffset", _one_of("earliest", "latest"), "earliest or latest", "earliest"
    )
    at_once: int = _option("maxEventsPerTrigger", _count, "a whole number from 1", 0)


@dataclass(frozen=True, kw_only=True)
class Writing(Connection):
    """Options of ``df.write`` and ``df.writeStream``.

    Attributes:
        action: ``submit`` jobs, or ``replay`` failed ones by the columns job_id and attempt.
        task: Name of the task of all jobs.
        arguments: Columns that are the positional arguments, in order.
        keywords: Columns that are keyword arguments.
        ids: Columns whose values make the id of a job.
        id_space: What the keys are unique in, the task if None.
        id_time: A moment, or a column with one, with which derived ids begin.
        in_flight: Jobs that are sent and not confirmed, per Spark task.
        rate: Jobs per second, per Spark task; 0.0 for no limit.
        report: Path of a file for the counts, written by the driver when all is done.
        queue: As the rest: see `eventmq.task.CallOptions`.
    """

    action: str = _option("action", _one_of("submit", "replay"), "submit or replay", "submit")
    task: str | None = _option("task", _text, "the name of a task")
    arguments: tuple[str, ...] | None = _option("argColumns", _names, "columns, each once")
    keywords: tuple[str, ...] | None = _option("kwargColumns", _names, "columns, each once")
    ids: tuple[str, ...] | None = _option("idColumns", _names, "columns, each once")
    id_space: str | None = _option("idSpace", _text, "any name")
    id_time: str | None = _option("idTime", _text, "a column, or a moment as 2026-01-31T12:00Z")
    in_flight: int = _option("maxInFlight", _count, "a whole number from 1", IN_FLIGHT)
    rate: float = _option("rate", _amount, "jobs per second, above 0", 0.0)
    report: str | None = _option("report", _text, "the path of a file")
    queue: str | None = _option("queue", _text, "the name of a queue")
    priority: int | None = _option("priority", _whole, "0 to 255")
    retries: int | None = _option("retries", _whole, "a whole number from 0")
    run_limit: float | None = _option("runTimeout", _amount, "seconds")
    expires: float | None = _option("expires", _amount, "seconds")
    ignore_result: bool | None = _option("ignoreResult", _flag, "true or false")

    def call(self) -> dict[str, Any]:
        """Return the options of each call."""
        said = {
            "queue": self.queue, "priority": self.priority, "retries": self.retries,
            "timeout": self.run_limit, "expires": self.expires,
            "ignore_result": self.ignore_result,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}


def read_options(kind: type[_T], given: Mapping[str, str], *, what: str) -> _T:
    """Return options for what Spark hands over.

    Args:
        kind: Which options there are.
        given: Names, in any case, and texts.
        what: Names the use, for messages.

    Raises:
        SettingsError: An option is unknown, or its value is not allowed.
    """
    known = {each.metadata["name"].lower(): each for each in fields(kind)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        # Of load(path): the folder of a journal.
        option = known.get("journal" if name.lower() == "path" else name.lower())
        if option is None:
            names = [each.metadata["name"] for each in known.values()]
            hint = did_you_mean(name, names)
            raise SettingsError(f'{what} of "eventmq" takes no option {name!r}; {hint}')
        values[option.name] = _value(option, text)
    return kind(**values)


def _value(option: Field[Any], text: str) -> Any:
    name, allowed = option.metadata["name"], option.metadata["allowed"]
    try:
        return option.metadata["read"](text)
    except ValueError:
        shown = "" if name in {"key", "brokerKey"} else f" {text[:80]!r}"
        # Without the cause, which may say the value.
        msg = f"option {name!r} cannot be{shown or ' what was given'}; allowed is: {allowed}"
        raise SettingsError(msg) from None


def moment(text: str) -> float | None:
    """Return the Unix time of an ISO moment, in UTC unless it says so; None for no moment."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return found.timestamp()


@contextlib.contextmanager
def connected(options: Connection) -> Iterator[EventMQ]:
    """Give an app that talks to the broker of the options, and close it at the end.

    What the options leave out, the settings of the machine say.

    Raises:
        SettingsError: A value is not allowed, or a key file cannot be read.
    """
    from eventmq import EventMQ

    said: dict[str, Any] = {
        "broker": options.broker.split(",") if options.broker else None,
        "key_file": options.key,
        "broker_key_file": options.broker_key,
        "submit_timeout": options.timeout,
    }
    app = EventMQ("spark", **{name: value for name, value in said.items() if value is not None})
    try:
        if "memory://" in app.settings.broker:
            msg = "the broker memory:// lives inside one process, and Spark's are others; name one "
            raise SettingsError(msg + 'that they reach: option("broker", "tcp://127.0.0.1:47291")')
        yield app
    finally:
        app.close()
