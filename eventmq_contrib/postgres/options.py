"""Options and factories of the PostgreSQL plugins; they import the library at first use."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from eventmq.sdk import PluginError, option, read_options
from eventmq_contrib.extras import need

if TYPE_CHECKING:
    from eventmq.sdk import PluginContext, QueueStore, ResultBackend, ScheduleStore
    from eventmq_contrib.postgres.connection import Database

__all__ = [
    "ResultOptions", "ScheduleOptions", "StoreOptions", "make_results", "make_schedules",
    "make_store", "read_database",
]  # fmt: skip

#: Default and upper bound of ``max_result``. The server accepts values of one gigabyte, which it
#: holds in memory several times.
MAX_RESULT = 256 * 1024**2
LARGEST = 1_000_000_000

#: Upper bound of ``max_frame``: the server gets several jobs of a batch as one value.
LARGEST_FRAME = 256 * 1024**2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Options of the result backend; in a URL they follow a ``?``, together with those of libpq.

    Attributes:
        url: ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE``.
        schema: Schema of the table.
        durable: See `PostgresResults`, also for the other options.
    """

    url: str
    schema: str = "eventmq"
    durable: bool = True
    max_result: int = option(MAX_RESULT, ge=1, le=LARGEST)
    connections: int = option(4, ge=1)
    timeout: float = option(30.0, gt=0)


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Options of the schedule store; see `ResultOptions`."""

    url: str
    schema: str = "eventmq_schedules"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of the queue store; see `ResultOptions`. All others are settings of the broker.

    Attributes:
        inbox: Whether the owner reads an outbox table in the database (`eventmq_contrib.outbox`).
    """

    url: str
    schema: str = "eventmq"
    durability: Literal["durable", "replicated"] = "durable"
    dedupe_window: float = option(86_400.0, ge=0)
    keep_results: float = option(86_400.0, ge=0)
    events_ring: int = option(64 * 1024**2, ge=0)
    events_cap: int = option(1024**3, ge=0)
    events_values: int = option(0, ge=0)
    expect_store: str = ""
    inbox: bool = False


def read_database(context: PluginContext, kind: type[T]) -> tuple[Database, T]:
    """Return the database and the options in a plugin context.

    Args:
        context: The context that a factory was called with.
        kind: Dataclass of the options, which include ``url`` and ``schema``.

    Raises:
        PluginError: ``psycopg`` is missing, or an option or the URL is wrong.
    """
    need("psycopg", user=f"{context.name}://", extra="postgres")
    from eventmq_contrib.postgres.connection import Database, split_url

    explicit: dict[str, Any] = dict(context.options)
    if "://" not in str(explicit.get("url", "")):
        raise PluginError(f"name the database: {context.name}://USER:PASSWORD@HOST:PORT/DATABASE")
    names = {field.name for field in fields(kind)} - {"url"}  # type: ignore[arg-type]
    url, url_options = split_url(str(explicit["url"]), names)
    options: Any = read_options(
        replace(context, options={**explicit, **url_options, "url": url}), kind
    )
    return Database.of(url, options.schema), options


def make_results(context: PluginContext) -> ResultBackend:
    """Return the result backend; raises `PluginError` for a wrong option."""
    database, options = read_database(context, ResultOptions)
    from eventmq_contrib.postgres.results import PostgresResults

    return PostgresResults(
        database,
        context.clock,
        durable=options.durable,
        max_result=options.max_result,
        connections=options.connections,
        timeout=options.timeout,
    )


def make_schedules(context: PluginContext) -> ScheduleStore:
    """Return the schedule store; raises `PluginError` for a wrong option."""
    database, _ = read_database(context, ScheduleOptions)
    from eventmq_contrib.postgres.schedules import PostgresSchedules

    return PostgresSchedules(database, context.clock)


def make_store(context: PluginContext) -> QueueStore:
    """Return the queue store; raises `PluginError` for a wrong option."""
    database, options = read_database(context, StoreOptions)
    if context.app is not None and context.app.settings.max_frame > LARGEST_FRAME:
        raise PluginError(
            f"max_frame is {context.app.settings.max_frame:,} bytes, but the limit for jobs in "
            f"PostgreSQL is {LARGEST_FRAME:,}: set max_frame to that or less"
        )
    from eventmq_contrib.postgres.memory import SeenLeaseFile
    from eventmq_contrib.postgres.store import PostgresStore
    from eventmq_contrib.postgres.upkeep import PostgresUpkeep, shared_settings

    store_options = asdict(options)
    for name in ("url", "schema", "durability", "inbox"):
        del store_options[name]
    own = {"durability": options.durability, "dedupe_window": options.dedupe_window}
    memory = None if context.app is None else SeenLeaseFile(Path(context.app.settings.data_dir))
    upkeep = PostgresUpkeep(database, {**shared_settings(context.app), **own}, memory)
    store = PostgresStore(database, context.clock, upkeep=upkeep, **store_options)
    if options.inbox and context.app is not None:
        from eventmq_contrib.outbox.relay import Inbox

        store.inbox = Inbox(options.url, context.app, lambda: store.ownership.rows is not None)
    return store
