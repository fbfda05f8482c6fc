"""The record of all settings: name, type, default, rule, unit and meaning of each.

A rule says in words what is allowed, and checks what the type does not. Lists of pairs have a text
form, which is parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from eventmq.conversion import Option, option, options_of
from eventmq.rates import parse_rate, show_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULT_WEIGHT", "FIELDS", "RENAMED", "SECRET", "Settings", "hide_passwords", "parse_buckets",
    "show",
]  # fmt: skip

_MIB = 1024 * 1024
_DAY = 86400.0

#: The weight of a queue that is named without one.
DEFAULT_WEIGHT = 10

#: Most buckets of one histogram.
MAX_BUCKETS = 50

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
#: A limit's name in TOML or text -> its index in (queue, rate, concurrency).
_LIMITS = {"rate_limit": 1, "rate": 1, "max_concurrency": 2, "concurrency": 2}

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_FUNCTION = f"{_DOTTED}:{_DOTTED}"

#: A password before the host of a URL, which may have any characters, and one in its query.
_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s'\"]*@")
_QUERY = re.compile(
    r"([?&][^\s=&]*(?:key|pass|pwd|secret|token)[^\s=&]*=)[^\s&'\",]*", re.IGNORECASE
)

#: In the name of an option whose value is not shown.
SECRET = re.compile("key|pass|pwd|secret|token", re.IGNORECASE)


def _port(url: str) -> int:
    found = _TCP.fullmatch(url)
    return int(found[2]) if found else -1


def _is_ipc(url: str) -> bool:
    return url.startswith("ipc://") and len(url) > len("ipc://")


def _is_connectable(url: str) -> bool:
    return 0 < _port(url) < 65536 or _is_ipc(url) or url == "memory://"  # noqa: PLR2004


def _is_advertisable(url: str) -> bool:
    """Return whether a peer elsewhere could connect to it: it names a host, and a port."""
    found = _TCP.fullmatch(url)
    named = found is None or found[1] not in {"*", "0.0.0.0", "[::]"}  # noqa: S104 - refused
    return named and _is_connectable(url) and url != "memory://"


def _is_bindable(url: str) -> bool:
    return 0 <= _port(url) < 65536 or _is_ipc(url)  # noqa: PLR2004


def _are_queue_weights(pairs: tuple[tuple[int, str], ...]) -> bool:
    names = [name for _, name in pairs]
    good = all(weight > 0 and name for weight, name in pairs)
    return bool(pairs) and good and len(set(names)) == len(names)


def _are_named_pairs(pairs: tuple[tuple[str, str], ...]) -> bool:
    names = [name for name, _ in pairs]
    return all(all(pair) for pair in pairs) and len(set(names)) == len(names)


def _are_buckets(pairs: tuple[tuple[str, str], ...]) -> bool:
    for _, bounds in pairs:
        parse_buckets(bounds)
    return _are_named_pairs(pairs)


def _are_queue_limits(rows: tuple[tuple[str, str, int], ...]) -> bool:
    names = [name for name, _, _ in rows]
    for _, rate, max_running in rows:
        if rate:
            parse_rate(rate)
        if max_running < 0 or not (rate or max_running):
            return False
    return all(names) and len(set(names)) == len(names)


def parse_buckets(text: str) -> tuple[float, ...]:
    """Return the upper bounds of a text such as ``0.1 1 10``.

    Raises:
        ValueError: They are not ascending numbers above 0, or more than `MAX_BUCKETS`.
    """
    bounds = tuple(map(float, text.split()))
    # nan is not below anything
    ascending = all(low < high for low, high in zip((0.0, *bounds), bounds, strict=False))
    if not bounds or len(bounds) > MAX_BUCKETS or not ascending or bounds[-1] == float("inf"):
        raise ValueError(text)
    return bounds


# Readers: from text or TOML to the shape that msgspec converts


def _items(value: object) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueError(value)


def _weights(value: object) -> list[object]:
    """Read name:weight pairs."""
    return [_weight(item) if isinstance(item, str) else item for item in _items(value)]


def _weight(text: str) -> tuple[object, str]:
    name, colon, weight = text.rpartition(":")
    return (weight.strip(), name) if colon else (DEFAULT_WEIGHT, text)


def _pairs(value: object) -> list[object]:
    """Read name:value pairs from text, or a table, as TOML has it."""
    items = value.items() if isinstance(value, Mapping) else _items(value)
    return [item.rpartition(":")[::2] if isinstance(item, str) else item for item in items]


def _limits(value: object) -> list[object]:
    """Read the limits of queues from text, from tables, or from its own result."""
    if isinstance(value, str):
        return [_limits_of(queue, items) for queue, items in _limits_text(value)]
    if isinstance(value, Mapping):
        if not all(isinstance(table, Mapping) for table in value.values()):
            raise ValueError(value)
        return [_limits_of(queue, table.items()) for queue, table in value.items()]
    return _items(value)


def _limits_of(queue: object, items: Iterable[tuple[str, object]]) -> list[object]:
    row: list[object] = [queue, "", 0]
    for name, value in items:
        place = _LIMITS.get(name, 0)
        if not place or row[place] or not value:
            raise ValueError(name)
        row[place] = value
    return row


def _limits_text(value: str) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Parse ``q:limit=value,limit=value,q2:...`` to (queue, [(limit, value)])."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for part in _items(value):
        queue, colon, limit = part.rpartition(":")
        name, equals, bound = limit.partition("=")
        if not equals or not (colon or found):
            raise ValueError(part)
        if colon:
            found.append((queue, []))
        found[-1][1].append((name.strip(), bound.strip()))
    return found


#: How a setting is read and checked: keyword arguments of `eventmq.conversion.option`.
Rule = Mapping[str, Any]

TEXT: Rule = {"allowed": "any non-empty text", "min_length": 1}
QUEUE_NAME: Rule = {
    "allowed": "text of 1 to 255 characters",
    "check": lambda name: 0 < len(name) <= 255,  # noqa: PLR2004 - as brokers take it
}
TEXT_OR_NONE: Rule = {"allowed": "any text; empty means not set"}
PATH: Rule = {"allowed": "a path; empty means not set"}
PATHS: Rule = {"allowed": "a list of paths; empty means not set", "check": all}
NAMES: Rule = {"allowed": "a list of names", "check": all}
SOME_NAMES: Rule = {"allowed": "a list of at least one name", "min_length": 1, "check": all}
BIND: Rule = {"allowed": "tcp://host:port or ipc://path", "check": _is_bindable}
SIDE_BIND: Rule = {
    "allowed": f"{BIND['allowed']}; empty means not opened",
    "check": lambda url: not url or _is_bindable(url),
}
ADVERTISED: Rule = {
    "allowed": "tcp://host:port or ipc://path of one host; empty means not set",
    "check": lambda url: not url or _is_advertisable(url),
}
BROKERS: Rule = {
    "allowed": "tcp://host:port, ipc://path or memory://, at least one, none twice",
    "min_length": 1,
    "check": lambda urls: all(map(_is_connectable, urls)) and len(set(urls)) == len(urls),
}
FUNCTION: Rule = {
    "allowed": "module:function; empty means not set",
    "pattern": f"^({_FUNCTION})?$",
}
QUEUE_ROUTING_STRATEGIES: Rule = {
    "allowed": "queue:strategy pairs, no queue twice",
    "parse": _pairs,
    "check": _are_named_pairs,
}
ROUTES: Rule = {
    "allowed": (
        'pattern:queue pairs, or a table [routes] with "shop.mail.*" = "mail"; no pattern twice'
    ),
    "parse": _pairs,
    "check": _are_named_pairs,
}
METRICS_BIND: Rule = {
    "allowed": "host:port, as in 127.0.0.1:9472; empty means not served",
    "check": lambda text: not text or _port(f"tcp://{text}") in range(65536),
}
BUCKETS: Rule = {
    "allowed": (
        'pattern:bounds pairs as "reports/shop.export:1 60 600,mail/shop.send:0.1 1 10", or a '
        'table with "reports/shop.export" = "1 60 600"; a pattern is of queue/task, '
        "bounds are 1 to 50 ascending numbers above 0; no pattern twice"
    ),
    "parse": _pairs,
    "check": _are_buckets,
}
QUEUE_LIMITS: Rule = {
    "allowed": (
        'queue:limits as "email:rate=100/m,concurrency=5,reports:concurrency=2", or as a table '
        'with email = {rate_limit = "100/m", max_concurrency = 5}; a rate is written 5/s, '
        "100/m, 1000/h or 2/10s, a concurrency is 1 or more; no queue twice"
    ),
    "parse": _limits,
    "check": _are_queue_limits,
}
QUEUES: Rule = {
    "allowed": "name:weight pairs, weights from 1, no name twice",
    "parse": _weights,
    "check": _are_queue_weights,
}


def _item(item: Any) -> str:
    if not isinstance(item, tuple):
        return str(item)
    if len(item) == 3:  # noqa: PLR2004 - the limits of a queue
        queue, rate, max_running = item
        return f"{queue}:{show_limits(rate, max_running)}"
    first, second = item
    return f"{second}:{first}" if isinstance(first, int) else f"{first}:{second}"


def show(value: object) -> str:
    """Return a value as text, as in its environment variable."""
    if isinstance(value, tuple):
        return ",".join(map(_item, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def hide_passwords(text: str) -> str:
    """Return the text with ``***`` for passwords in URLs."""
    return _QUERY.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, with their source in ``sources`` and plugins' tables in ``plugin_options``.

    Make one with `load_settings`, which checks what the constructor does not.
    """

    broker: tuple[str, ...] = option(
        ("tcp://127.0.0.1:47291",),
        "Brokers that a client, worker or scheduler connects to. Of those that share a store the "
        "owner is used, also at another address; of others the first that answers.",
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
    actor: str = option(
        "",
        "Who acts, in the broker's events and log of what is cancelled, retried, paused and so on, "
        "where this peer may say so; empty: the command line says user@host, programs nothing.",
        **TEXT_OR_NONE,
    )
    default_queue: str = option("default", "Queue of tasks that name none.", **QUEUE_NAME)
    routes: tuple[tuple[str, str], ...] = option(
        (),
        'Queues of tasks that name none, by patterns of the names of tasks, as "shop.mail.*:mail"; '
        "the first pattern that fits counts, and `default_queue` where none does.",
        **ROUTES,
    )
    submit_timeout: float = option(5.0, "How long to wait for a receipt.", gt=0, unit="s")
    legacy_broker: bool = option(
        False,  # noqa: FBT003 - the default of a field
        "The broker is a router of EventMQ 0.3, which answers no client: jobs are sent without "
        "waiting for it, and their results cannot be read.",
    )
    broker_key_file: tuple[str, ...] = option(
        (),
        "File with the broker's public key, if it uses CURVE; goes with `key_file`. For several "
        "brokers one file if they have the same key, else one for each of `broker`, in its order.",
        **PATHS,
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
    advertise: str = option(
        "",
        "Address of this broker that peers are told when it owns a store that several brokers "
        "share, such as `tcp://10.0.0.5:47291`. Empty: `bind`, which then names one host.",
        **ADVERTISED,
    )
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
    durability: Literal["durable", "replicated", "relaxed", "memory"] = option(
        "durable",
        "durable: on disk before the receipt; replicated: on the disks of a database and of a "
        "synchronous replica of it; relaxed: on disk within `fsync_interval`; memory: never.",
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
    max_frame: int = option(
        16 * _MIB, "Longest frame of a message.", ge=1024, le=2**31 - 1, unit="bytes"
    )
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
    max_job_log_bytes: int = option(
        64 * 1024,
        "Space for what one job of a task with `keep_logs` logs, all attempts together; the oldest "
        "lines are cut. The worker cuts what it sends, the broker what it keeps.",
        ge=256,
        le=4 * _MIB,
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
    metrics_bind: str = option(
        "",
        "Where a broker or worker serves its own metrics to Prometheus; port 0 takes a free one. "
        "Addresses that other machines can reach need `insecure`.",
        **METRICS_BIND,
    )
    metrics_max_queues: int = option(
        100,
        'Queues with metrics of their own; those that come later are counted as "other".',
        ge=1,
        unit="queues",
    )
    metrics_max_tasks: int = option(
        1000,
        "Tasks with metrics of their own, a task in two queues twice; those that come later are "
        'counted as "other" of their queue.',
        ge=1,
        unit="tasks",
    )
    metrics_wait_buckets: tuple[tuple[str, str], ...] = option(
        (),
        "Upper bounds in seconds of the histogram of how long jobs waited, by queue and task; the "
        "first pattern that fits counts, such as `reports/*`.",
        **BUCKETS,
    )
    metrics_run_buckets: tuple[tuple[str, str], ...] = option(
        (),
        "The same for the histogram of how long jobs ran.",
        **BUCKETS,
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
    log_format: Literal["text", "json"] = option(
        "text",
        "Form of the lines of EventMQ's own log handler: text, or one JSON object a line.",
    )
    log_handlers: Literal["keep", "replace"] = option(
        "keep",
        "Whether commands keep the handlers that the app's modules have given the root logger; "
        "EventMQ's own handler is used where there are none, or replaces them.",
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

    def queue_of(self, task: str) -> str:
        """Return the queue of a task that names none: that of its route, or the default queue."""
        fitting = (queue for pattern, queue in self.routes if fnmatchcase(task, pattern))
        return next(fitting, self.default_queue)


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
