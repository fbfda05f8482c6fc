"""The record of all settings: name, type, default, rule, unit and meaning of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eventmq.conversion import Option, option, options_of
from eventmq.settings.values import (
    BIND,
    BROKERS,
    DEFAULT_WEIGHT,
    FUNCTION,
    NAMES,
    PATH,
    QUEUE_LIMITS,
    QUEUE_ROUTING_STRATEGIES,
    QUEUES,
    SIDE_BIND,
    SOME_NAMES,
    TEXT,
    TEXT_OR_NONE,
)

__all__ = ["FIELDS", "RENAMED", "Settings"]

_MIB = 1024 * 1024
_DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, with their source in ``sources`` and plugins' tables in ``plugin_options``.

    Make one with `load_settings`, which checks what the constructor does not.
    """

    broker: tuple[str, ...] = option(
        ("tcp://127.0.0.1:47291",),
        "Brokers that a client, worker or scheduler connects to; the first that answers is used.",
        **BROKERS,
    )
    serializer: str = option(
        "msgpack",
        "Writes arguments and results; must be in `accept_content`.",
        **TEXT,
    )
    accept_content: tuple[str, ...] = option(
        ("msgpack", "json"),
        "Content types that this side decodes.",
        **SOME_NAMES,
    )
    result_backend: str = option("broker", "Keeps results: a name, or a URL by its scheme.", **TEXT)
    imports: tuple[str, ...] = option((), "Modules with tasks, imported by a worker.", **NAMES)
    release: str = option(
        "",
        "Release of the code, in the events of the jobs that it submits; empty: none.",
        **TEXT_OR_NONE,
    )
    default_queue: str = option("default", "Queue of tasks that name none.", **TEXT)
    submit_timeout: float = option(5.0, "How long to wait for a receipt.", gt=0, unit="s")
    legacy_broker: bool = option(
        False,  # noqa: FBT003 - the default of a field
        "The broker is a router of EventMQ 0.3, which answers no client: jobs are sent without "
        "waiting for it, and their results cannot be read.",
    )
    broker_key_file: str = option(
        "",
        "File with the broker's public key, if it uses CURVE; goes with `key_file`.",
        **PATH,
    )
    key_file: str = option(
        "",
        "File with the own secret key, which others must not be able to read; goes with "
        "`broker_key_file`.",
        **PATH,
    )
    result_timeout: float = option(60.0, "Default timeout of `get()`.", gt=0, unit="s")
    bind: str = option("tcp://127.0.0.1:47291", "The broker's address for every role.", **BIND)
    worker_bind: str = option("tcp://127.0.0.1:47290", "One more address for workers.", **SIDE_BIND)
    admin_bind: str = option("tcp://127.0.0.1:47293", "Address for administration.", **SIDE_BIND)
    publish_bind: str = option("tcp://127.0.0.1:47298", "Address for publishers.", **SIDE_BIND)
    subscribe_bind: str = option("tcp://127.0.0.1:47299", "Address for subscribers.", **SIDE_BIND)
    data_dir: str = option(".eventmq", "Directory of everything that the broker keeps.", **TEXT)
    keys_dir: str = option(
        "",
        "Directory of the broker's key and of those that it authorises; empty: `keys` in "
        "`data_dir`. CURVE is on where it has a broker's key.",
        **PATH,
    )
    store: str = option("sqlite", "Keeps jobs: a name, or a URL by its scheme.", **TEXT)
    expect_store: str = option(
        "",
        "Id that the broker's store must have, as in its `ready` line; the broker ends if the "
        "store is missing or has another one. Empty: a missing store is made.",
        **TEXT_OR_NONE,
    )
    schedule_store: str = option(
        "broker", "Keeps schedules: a name, or a URL by its scheme.", **TEXT
    )
    durability: Literal["durable", "relaxed", "memory"] = option(
        "durable",
        "durable: on disk before the receipt; relaxed: on disk within `fsync_interval`; "
        "memory: never.",
    )
    fsync_interval: float = option(
        0.05,
        "Longest time without fsync if durability is relaxed.",
        gt=0,
        unit="s",
    )
    redactor: str = option(
        "",
        "Chooses which arguments and results a journal keeps; `eventmq journal` calls it. If it is "
        "set, the broker keeps them with its events, and calls nothing.",
        **FUNCTION,
    )
    heartbeat_interval: float = option(3.0, "Time between heartbeats.", gt=0, unit="s")
    heartbeat_timeout: float = option(
        15.0,
        "A peer that is silent for so long is considered dead.",
        gt=0,
        unit="s",
    )
    max_frame: int = option(16 * _MIB, "Longest frame of a message.", ge=1024, unit="bytes")
    max_input_bytes: int = option(
        256 * _MIB,
        "Results of other jobs that one job receives, as the callback of a chord does; a job that "
        "would receive more fails.",
        ge=1024,
        unit="bytes",
    )
    max_queue_length: int = option(
        10_000_000,
        "Unfinished jobs of one queue; more are refused.",
        ge=1,
        unit="jobs",
    )
    max_queues: int = option(
        10_000,
        "Queues that a broker knows; jobs for others are refused.",
        ge=1,
        unit="queues",
    )
    max_new_queues: int = option(
        1000,
        "New queues of one client, or of the clients with one key, that no worker serves yet; jobs "
        "for more queues are refused.",
        ge=1,
        unit="queues",
    )
    empty_queue_ttl: float = option(
        600.0,
        "An empty queue that no worker serves is forgotten after this time, unless it is paused, "
        "has limits or has failed jobs.",
        ge=60,
        unit="s",
    )
    max_peers: int = option(10_000, "Peers that a broker serves.", ge=1, unit="peers")
    max_message_rate: float = option(
        0.0,
        "Requests, calls and publications that one peer may send; more are refused as "
        "`RateLimited`. 0: any number.",
        ge=0,
        unit="1/s",
    )
    max_unsent_bytes: int = option(
        64 * _MIB,
        "Messages that a broker keeps for one peer that does not read them; further ones are not "
        "sent to it.",
        ge=_MIB,
        unit="bytes",
    )
    max_total_unsent_bytes: int = option(
        256 * _MIB,
        "The same for all peers together. One peer may use half of the free part.",
        ge=_MIB,
        unit="bytes",
    )
    queue_window: int = option(
        5000,
        "Jobs of one queue that a broker holds in memory.",
        ge=1,
        unit="jobs",
    )
    dedupe_window: float = option(
        _DAY,
        "How long the id of a finished job is refused.",
        ge=0,
        unit="s",
    )
    result_ttl: float = option(_DAY, "How long a result is kept.", ge=0, unit="s")
    failed_ttl: float = option(
        30 * _DAY,
        "How long a failed job is kept, to be retried.",
        ge=0,
        unit="s",
    )
    max_failed_bytes: int = option(
        1024 * _MIB,
        "Space for failed jobs; the oldest are removed.",
        ge=0,
        unit="bytes",
    )
    unknown_task_grace: float = option(
        300.0,
        "How long a job waits for a worker that knows its task.",
        ge=0,
        unit="s",
    )
    legacy_queue_fallback: Literal["default", "keep", "refuse"] = option(
        "default",
        "What happens with jobs of legacy clients in a queue that no worker serves: workers of the "
        "default queue take them, they wait, or they are refused.",
    )
    priority_seconds: float = option(
        60.0,
        "Seconds of waiting that one step of priority is worth.",
        ge=0,
        unit="s",
    )
    disk_reserve: int = option(
        256 * _MIB,
        "With less free space jobs are refused.",
        ge=0,
        unit="bytes",
    )
    queues: tuple[tuple[int, str], ...] = option(
        ((DEFAULT_WEIGHT, "default"),),
        'Queues of a worker, as "email:40,default:10"; the default weight is 10.',
        **QUEUES,
    )
    concurrency: int = option(
        0,
        "Jobs that a worker runs at once; 0: one per CPU, or 1,000 in the pool asyncio.",
        ge=0,
        unit="jobs",
    )
    min_concurrency: int = option(
        0,
        "Smallest number of slots of a worker: it uses up to `concurrency` while all are busy, and "
        "fewer when idle. 0: always all.",
        ge=0,
        unit="jobs",
    )
    pool: str = option("prefork", "Runs jobs inside a worker.", **TEXT)
    allow_callables: tuple[str, ...] = option(
        (),
        "Patterns of dotted paths that a message may name instead of a task.",
        **NAMES,
    )
    shutdown_grace: float = option(
        30.0,
        "Time for running jobs when a worker stops.",
        ge=0,
        unit="s",
    )
    cancel_grace: float = option(
        5.0,
        "Time for a cancelled running job to end, before its process is killed or its thread is "
        "abandoned.",
        ge=0,
        unit="s",
    )
    max_abandoned_threads: int = option(
        0,
        "Unresponsive threads, whose jobs ran past their timeout or ignored a cancel, that a "
        "worker may have; with more it hands back its jobs and restarts. 0: as many as slots.",
        ge=0,
        unit="threads",
    )
    routing_strategy: str = option(
        "least-recently-used",
        "Decides which worker gets the next jobs.",
        **TEXT,
    )
    queue_routing_strategies: tuple[tuple[str, str], ...] = option(
        (),
        'Other `routing_strategy` for some queues, as "reports:sticky,media:round-robin".',
        **QUEUE_ROUTING_STRATEGIES,
    )
    queue_limits: tuple[tuple[str, str, int], ...] = option(
        (),
        "How many jobs of a queue may start per time, and run at a time, over all workers and "
        "tasks; the limits of tasks and keys hold as well.",
        **QUEUE_LIMITS,
    )
    queue_order: str = option(
        "weighted-fair", "Decides which queue a worker is served from.", **TEXT
    )
    middleware: tuple[str, ...] = option(
        ("log-context",),
        "Wrapped around submission and execution, outermost first.",
        **NAMES,
    )
    load_plugins: tuple[str, ...] = option(
        (),
        "Modules loaded as plugins, beside those of installed distributions.",
        **NAMES,
    )
    disabled_plugins: tuple[str, ...] = option((), "Plugins that are not loaded.", **NAMES)
    log_level: Literal["debug", "info", "warning", "error", "critical"] = option(
        "info",
        "Lowest level that is logged.",
    )
    insecure: bool = option(
        False,  # noqa: FBT003 - the default of a field
        "Serve other machines without encryption and without keys.",
    )
    plugin_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Return where a setting came from: ``default``, a file, a variable or ``argument``."""
        return self.sources.get(name, "default")


#: Name -> declaration, of those that a source may set.
FIELDS: Mapping[str, Option] = {
    name: option for name, option in options_of(Settings).items() if option.doc
}

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
    "max_unread_total": "max_total_unsent_bytes",
    "priority_step": "priority_seconds",
    "queue_routing": "queue_routing_strategies",
    "relaxed_interval": "fsync_interval",
    "routing": "routing_strategy",
    "unknown_queue": "legacy_queue_fallback",
    "window": "queue_window",
}
