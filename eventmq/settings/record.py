"""The record of all settings: name, type, default, rule, unit and meaning of each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from eventmq.settings.values import (
    ANY_TEXT,
    BIND,
    BROKERS,
    DEFAULT_WEIGHT,
    FLAG,
    FUNCTION,
    NAMES,
    PATH,
    POSITIVE,
    QUEUE_LIMITS,
    QUEUE_ROUTING_STRATEGIES,
    QUEUES,
    SIDE_BIND,
    SOME,
    TEXT,
    at_least,
    choice,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import Field

    from eventmq.settings.values import Rule

__all__ = ["FIELDS", "RENAMED", "Settings"]

_MIB = 1024 * 1024
_DAY = 86400.0


def _set(default: Any, rule: Rule, doc: str, *, unit: str = "") -> Any:
    """Declare a field: its default, what is allowed, what it means, its unit."""
    allowed, check = rule
    return field(
        default=default, metadata={"unit": unit, "doc": doc, "allowed": allowed, "check": check}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, with their source in ``sources`` and plugins' tables in ``plugin_options``.

    Make one with `load_settings`, which checks what the constructor does not.
    """

    broker: tuple[str, ...] = _set(
        ("tcp://127.0.0.1:47291",),
        BROKERS,
        "Brokers that a client, worker or scheduler connects to; the first that answers is used.",
    )
    serializer: str = _set(
        "msgpack", TEXT, "Writes arguments and results; must be in `accept_content`."
    )
    accept_content: tuple[str, ...] = _set(
        ("msgpack", "json"), SOME, "Content types that this side decodes."
    )
    result_backend: str = _set("broker", TEXT, "Keeps results: a name, or a URL by its scheme.")
    imports: tuple[str, ...] = _set((), NAMES, "Modules with tasks, imported by a worker.")
    release: str = _set(
        "", ANY_TEXT, "Release of the code, in the events of the jobs that it submits; empty: none."
    )
    default_queue: str = _set("default", TEXT, "Queue of tasks that name none.")
    submit_timeout: float = _set(5.0, POSITIVE, "How long to wait for a receipt.", unit="s")
    legacy_broker: bool = _set(
        False,  # noqa: FBT003 - the default of a field
        FLAG,
        "The broker is a router of EventMQ 0.3, which answers no client: jobs are sent without "
        "waiting for it, and their results cannot be read.",
    )
    broker_key_file: str = _set(
        "",
        PATH,
        "File with the broker's public key, if it uses CURVE; goes with `key_file`.",
    )
    key_file: str = _set(
        "",
        PATH,
        "File with the own secret key, which others must not be able to read; goes with "
        "`broker_key_file`.",
    )
    result_timeout: float = _set(60.0, POSITIVE, "Default timeout of `get()`.", unit="s")
    bind: str = _set("tcp://127.0.0.1:47291", BIND, "The broker's address for every role.")
    worker_bind: str = _set("tcp://127.0.0.1:47290", SIDE_BIND, "One more address for workers.")
    admin_bind: str = _set("tcp://127.0.0.1:47293", SIDE_BIND, "Address for administration.")
    publish_bind: str = _set("tcp://127.0.0.1:47298", SIDE_BIND, "Address for publishers.")
    subscribe_bind: str = _set("tcp://127.0.0.1:47299", SIDE_BIND, "Address for subscribers.")
    data_dir: str = _set(".eventmq", TEXT, "Directory of everything that the broker keeps.")
    keys_dir: str = _set(
        "",
        PATH,
        "Directory of the broker's key and of those that it authorises; empty: `keys` in "
        "`data_dir`. CURVE is on where it has a broker's key.",
    )
    store: str = _set("sqlite", TEXT, "Keeps jobs: a name, or a URL by its scheme.")
    expect_store: str = _set(
        "",
        ANY_TEXT,
        "Id that the broker's store must have, as in its `ready` line; the broker ends if the "
        "store is missing or has another one. Empty: a missing store is made.",
    )
    schedule_store: str = _set("broker", TEXT, "Keeps schedules: a name, or a URL by its scheme.")
    durability: str = _set(
        "durable",
        choice("durable", "relaxed", "memory"),
        "durable: on disk before the receipt; relaxed: on disk within `fsync_interval`; "
        "memory: never.",
    )
    fsync_interval: float = _set(
        0.05, POSITIVE, "Longest time without fsync if durability is relaxed.", unit="s"
    )
    redactor: str = _set(
        "",
        FUNCTION,
        "Chooses which arguments and results a journal keeps; `eventmq journal` calls it. If it is "
        "set, the broker keeps them with its events, and calls nothing.",
    )
    heartbeat_interval: float = _set(3.0, POSITIVE, "Time between heartbeats.", unit="s")
    heartbeat_timeout: float = _set(
        15.0, POSITIVE, "A peer that is silent for so long is considered dead.", unit="s"
    )
    max_frame: int = _set(16 * _MIB, at_least(1024), "Longest frame of a message.", unit="bytes")
    max_input_bytes: int = _set(
        256 * _MIB,
        at_least(1024),
        "Results of other jobs that one job receives, as the callback of a chord does; a job that "
        "would receive more fails.",
        unit="bytes",
    )
    max_queue_length: int = _set(
        10_000_000, at_least(1), "Unfinished jobs of one queue; more are refused.", unit="jobs"
    )
    max_queues: int = _set(
        10_000,
        at_least(1),
        "Queues that a broker knows; jobs for others are refused.",
        unit="queues",
    )
    max_new_queues: int = _set(
        1000,
        at_least(1),
        "New queues of one client, or of the clients with one key, that no worker serves yet; jobs "
        "for more queues are refused.",
        unit="queues",
    )
    empty_queue_ttl: float = _set(
        600.0,
        at_least(60),
        "An empty queue that no worker serves is forgotten after this time, unless it is paused, "
        "has limits or has failed jobs.",
        unit="s",
    )
    max_peers: int = _set(10_000, at_least(1), "Peers that a broker serves.", unit="peers")
    max_message_rate: float = _set(
        0.0,
        at_least(0),
        "Requests, calls and publications that one peer may send; more are refused as "
        "`RateLimited`. 0: any number.",
        unit="1/s",
    )
    max_unsent_bytes: int = _set(
        64 * _MIB,
        at_least(_MIB),
        "Messages that a broker keeps for one peer that does not read them; further ones are not "
        "sent to it.",
        unit="bytes",
    )
    max_unread_total: int = _set(
        256 * _MIB,
        at_least(_MIB),
        "The same for all peers together. One peer may use half of the free part.",
        unit="bytes",
    )
    queue_window: int = _set(
        5000, at_least(1), "Jobs of one queue that a broker holds in memory.", unit="jobs"
    )
    dedupe_window: float = _set(
        _DAY, at_least(0), "How long the id of a finished job is refused.", unit="s"
    )
    result_ttl: float = _set(_DAY, at_least(0), "How long a result is kept.", unit="s")
    failed_ttl: float = _set(
        30 * _DAY, at_least(0), "How long a failed job is kept, to be retried.", unit="s"
    )
    max_failed_bytes: int = _set(
        1024 * _MIB, at_least(0), "Space for failed jobs; the oldest are removed.", unit="bytes"
    )
    unknown_task_grace: float = _set(
        300.0, at_least(0), "How long a job waits for a worker that knows its task.", unit="s"
    )
    legacy_queue_fallback: str = _set(
        "default",
        choice("default", "keep", "refuse"),
        "What happens with jobs of legacy clients in a queue that no worker serves: workers of the "
        "default queue take them, they wait, or they are refused.",
    )
    priority_seconds: float = _set(
        60.0, at_least(0), "Seconds of waiting that one step of priority is worth.", unit="s"
    )
    disk_reserve: int = _set(
        256 * _MIB, at_least(0), "With less free space jobs are refused.", unit="bytes"
    )
    queues: tuple[tuple[int, str], ...] = _set(
        ((DEFAULT_WEIGHT, "default"),),
        QUEUES,
        'Queues of a worker, as "email:40,default:10"; the default weight is 10.',
    )
    concurrency: int = _set(
        0,
        at_least(0),
        "Jobs that a worker runs at once; 0: one per CPU, or 1,000 in the pool asyncio.",
        unit="jobs",
    )
    min_concurrency: int = _set(
        0,
        at_least(0),
        "Smallest number of slots of a worker: it uses up to `concurrency` while all are busy, and "
        "fewer when idle. 0: always all.",
        unit="jobs",
    )
    pool: str = _set("prefork", TEXT, "Runs jobs inside a worker.")
    allow_callables: tuple[str, ...] = _set(
        (), NAMES, "Patterns of dotted paths that a message may name instead of a task."
    )
    shutdown_grace: float = _set(
        30.0, at_least(0), "Time for running jobs when a worker stops.", unit="s"
    )
    cancel_grace: float = _set(
        5.0,
        at_least(0),
        "Time for a cancelled running job to end, before its process is killed or its thread is "
        "abandoned.",
        unit="s",
    )
    max_abandoned_threads: int = _set(
        0,
        at_least(0),
        "Unresponsive threads, whose jobs ran past their timeout or ignored a cancel, that a "
        "worker may have; with more it hands back its jobs and restarts. 0: as many as slots.",
        unit="threads",
    )
    routing_strategy: str = _set(
        "least-recently-used", TEXT, "Decides which worker gets the next jobs."
    )
    queue_routing_strategies: tuple[tuple[str, str], ...] = _set(
        (),
        QUEUE_ROUTING_STRATEGIES,
        'Other `routing_strategy` for some queues, as "reports:sticky,media:round-robin".',
    )
    queue_limits: tuple[tuple[str, str, int], ...] = _set(
        (),
        QUEUE_LIMITS,
        "How many jobs of a queue may start per time, and run at a time, over all workers and "
        "tasks; the limits of tasks and keys hold as well.",
    )
    queue_order: str = _set("weighted-fair", TEXT, "Decides which queue a worker is served from.")
    middleware: tuple[str, ...] = _set(
        ("log-context",), NAMES, "Wrapped around submission and execution, outermost first."
    )
    load_plugins: tuple[str, ...] = _set(
        (), NAMES, "Modules loaded as plugins, beside those of installed distributions."
    )
    disabled_plugins: tuple[str, ...] = _set((), NAMES, "Plugins that are not loaded.")
    log_level: str = _set(
        "info",
        choice("debug", "info", "warning", "error", "critical"),
        "Lowest level that is logged.",
    )
    insecure: bool = _set(
        False,  # noqa: FBT003 - the default of a field
        FLAG,
        "Serve other machines without encryption and without keys.",
    )
    plugin_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Return where a setting came from: ``default``, a file, a variable or ``argument``."""
        return self.sources.get(name, "default")


#: Name -> field, of those that a source may set.
FIELDS: Mapping[str, Field[Any]] = {f.name: f for f in fields(Settings) if f.metadata}

#: Name that a setting had -> its name. Where a source has the old one, the error tells the new one.
RENAMED: Mapping[str, str] = {
    "accept": "accept_content",
    "broker_key": "broker_key_file",
    "failed_age": "failed_ttl",
    "failed_bytes": "max_failed_bytes",
    "grace": "shutdown_grace",
    "key": "key_file",
    "liveness": "heartbeat_timeout",
    "max_abandoned": "max_abandoned_threads",
    "max_inputs": "max_input_bytes",
    "max_unread": "max_unsent_bytes",
    "priority_step": "priority_seconds",
    "queue_routing": "queue_routing_strategies",
    "relaxed_interval": "fsync_interval",
    "routing": "routing_strategy",
    "unknown_queue": "legacy_queue_fallback",
    "window": "queue_window",
}
