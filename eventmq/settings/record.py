"""The record of all settings: name, type, default, rule, unit and meaning of each.

A rule describes the allowed values, and checks what the type does not. Lists of pairs have a text
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

#: Weight of a queue that is named without one.
DEFAULT_WEIGHT = 10

#: Maximum number of buckets in one histogram.
MAX_BUCKETS = 50

_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
#: A limit's name in TOML or text -> its index in (queue, rate, concurrency).
_LIMITS = {"rate_limit": 1, "rate": 1, "max_concurrency": 2, "concurrency": 2}

_DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_FUNCTION = f"{_DOTTED}:{_DOTTED}"

#: A password before the host of a URL, which may contain any characters.
_PASSWORD = re.compile(r"(://[^\s:/@]*):[^\s'\"]*@")
_QUERY = re.compile(
    r"([?&][^\s=&]*(?:key|pass|pwd|secret|token)[^\s=&]*=)[^\s&'\",]*", re.IGNORECASE
)

#: Matches names of options whose values are hidden.
SECRET = re.compile("key|pass|pwd|secret|token", re.IGNORECASE)


def _port(url: str) -> int:
    match = _TCP.fullmatch(url)
    return int(match[2]) if match else -1


def _is_ipc(url: str) -> bool:
    return url.startswith("ipc://") and len(url) > len("ipc://")


def _is_connectable(url: str) -> bool:
    return 0 < _port(url) < 65536 or _is_ipc(url) or url == "memory://"  # noqa: PLR2004


def _is_advertisable(url: str) -> bool:
    """Return whether other machines could connect to it: it names a host and a port."""
    match = _TCP.fullmatch(url)
    named = match is None or match[1] not in {"*", "0.0.0.0", "[::]"}  # noqa: S104 - refused
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
    """Parse the upper bounds of histogram buckets, such as ``0.1 1 10``.

    Raises:
        ValueError: They are not ascending numbers above 0, or more than `MAX_BUCKETS`.
    """
    bounds = tuple(map(float, text.split()))
    # nan is not below anything
    ascending = all(low < high for low, high in zip((0.0, *bounds), bounds, strict=False))
    if not bounds or len(bounds) > MAX_BUCKETS or not ascending or bounds[-1] == float("inf"):
        raise ValueError(text)
    return bounds


# Parsers: from text or TOML to the shape that msgspec converts


def _items(value: object) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueError(value)


def _weights(value: object) -> list[object]:
    """Parse name:weight pairs."""
    return [_weight(item) if isinstance(item, str) else item for item in _items(value)]


def _weight(text: str) -> tuple[object, str]:
    name, colon, weight = text.rpartition(":")
    if not colon and text.rpartition("=")[2].strip().isdigit() and "=" in text:
        raise ValueError(text)  # meant as a weight, not as a part of the name
    return (weight.strip(), name) if colon else (DEFAULT_WEIGHT, text)


def _pairs(value: object) -> list[object]:
    """Parse name:value pairs from text, or from a table of TOML."""
    items = value.items() if isinstance(value, Mapping) else _items(value)
    return [item.rpartition(":")[::2] if isinstance(item, str) else item for item in items]


def _limits(value: object) -> list[object]:
    """Parse the limits of queues from text, from tables, or from a previous result."""
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
        index = _LIMITS.get(name, 0)
        if not index or row[index] or not value:
            raise ValueError(name)
        row[index] = value
    return row


def _limits_text(value: str) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Parse ``q:limit=value,limit=value,q2:...`` to (queue, [(limit, value)])."""
    parsed: list[tuple[str, list[tuple[str, str]]]] = []
    for part in _items(value):
        queue, colon, limit = part.rpartition(":")
        name, equals, bound = limit.partition("=")
        if not equals or not (colon or parsed):
            raise ValueError(part)
        if colon:
            parsed.append((queue, []))
        parsed[-1][1].append((name.strip(), bound.strip()))
    return parsed


#: How a setting is parsed and checked: keyword arguments of `eventmq.conversion.option`.
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
    "allowed": 'name:weight pairs as "email:40,default:10", weights from 1, no name twice',
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
    """Return a value as text, in the form of its environment variable."""
    if isinstance(value, tuple):
        return ",".join(map(_item, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def hide_passwords(text: str) -> str:
    """Replace passwords in the URLs of a text by ``***``."""
    return _QUERY.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, with their source in ``sources`` and plugins' tables in ``plugin_options``.

    Use `load_settings` to make one: it checks what the constructor does not.
    """

    broker: tuple[str, ...] = option(
        ("tcp://127.0.0.1:47291",),
        "Brokers that a client, worker or scheduler connects to. Of brokers that share a store it "
        "uses the owner, even at another address; of other brokers the first that answers.",
        **BROKERS,
    )
    serializer: str = option(
        "msgpack",
        "Serializer of arguments and results; must be in `accept_content`.",
        **TEXT,
    )
    accept_content: tuple[str, ...] = option(
        ("msgpack", "json"),
        "Content types that this side decodes.",
        **SOME_NAMES,
    )
    result_backend: str = option("broker", "Store of results: a name, or a URL.", **TEXT)
    imports: tuple[str, ...] = option((), "Modules with tasks, which a worker imports.", **NAMES)
    release: str = option(
        "",
        "Release of the code, recorded in the events of the jobs that it submits; empty: none.",
        **TEXT_OR_NONE,
    )
    actor: str = option(
        "",
        "User in the broker's events and log for operations such as cancel, retry and pause, if "
        "this peer may set it. Empty: user@host for the command line, nothing for programs.",
        **TEXT_OR_NONE,
    )
    default_queue: str = option("default", "Queue of tasks without a queue.", **QUEUE_NAME)
    routes: tuple[tuple[str, str], ...] = option(
        (),
        'Queues of tasks without a queue, by patterns of task names, as "shop.mail.*:mail"; the '
        "first pattern that matches counts, or else `default_queue`.",
        **ROUTES,
    )
    submit_timeout: float = option(5.0, "Time to wait for a receipt.", gt=0, unit="s")
    legacy_broker: bool = option(
        False,  # noqa: FBT003 - the default of a field
        "The broker is a router of EventMQ 0.3, which answers no client: jobs are sent without "
        "waiting for it, and their results cannot be read.",
    )
    broker_key_file: tuple[str, ...] = option(
        (),
        "File with the broker's public key, if it uses CURVE; requires `key_file`. For several "
        "brokers one file if they have the same key, otherwise one per broker, in the same order.",
        **PATHS,
    )
    key_file: str = option(
        "",
        "File with this peer's secret key, which other users must not be able to read; requires "
        "`broker_key_file`.",
        **PATH,
    )
    result_timeout: float = option(60.0, "Default timeout of `get()`.", gt=0, unit="s")
    bind: str = option("tcp://127.0.0.1:47291", "The broker's address for every role.", **BIND)
    worker_bind: str = option(
        "tcp://127.0.0.1:47290", "Additional address for workers.", **SIDE_BIND
    )
    admin_bind: str = option("tcp://127.0.0.1:47293", "Address for administration.", **SIDE_BIND)
    publish_bind: str = option("tcp://127.0.0.1:47298", "Address for publishers.", **SIDE_BIND)
    subscribe_bind: str = option("tcp://127.0.0.1:47299", "Address for subscribers.", **SIDE_BIND)
    advertise: str = option(
        "",
        "Address of this broker that peers get while it owns a store that several brokers share, "
        "such as `tcp://10.0.0.5:47291`. Empty: `bind`, which must then name one host.",
        **ADVERTISED,
    )
    data_dir: str = option(".eventmq", "Directory of the broker's data.", **TEXT)
    keys_dir: str = option(
        "",
        "Directory of the broker's key and of the keys that it authorises; empty: `keys` in "
        "`data_dir`. CURVE is on if it has the broker's key.",
        **PATH,
    )
    store: str = option("sqlite", "Store of jobs: a name, or a URL.", **TEXT)
    expect_store: str = option(
        "",
        "Id that the broker's store must have, as in its `ready` line; the broker exits if the "
        "store is missing or has another id. Empty: a missing store is created.",
        **TEXT_OR_NONE,
    )
    schedule_store: str = option("broker", "Store of schedules: a name, or a URL.", **TEXT)
    durability: Literal["durable", "replicated", "relaxed", "memory"] = option(
        "durable",
        "durable: on disk before the receipt; replicated: on the disks of a database and of a "
        "synchronous replica of it; relaxed: on disk within `fsync_interval`; memory: never.",
    )
    fsync_interval: float = option(
        0.05,
        "Maximum time without fsync if durability is relaxed.",
        gt=0,
        unit="s",
    )
    redactor: str = option(
        "",
        "Function that chooses the arguments and results in a journal; `eventmq journal` calls it. "
        "If it is set, the broker keeps them with its events, but does not call the function.",
        **FUNCTION,
    )
    heartbeat_interval: float = option(3.0, "Time between heartbeats.", gt=0, unit="s")
    heartbeat_timeout: float = option(
        15.0,
        "A peer that is silent for this long is considered dead.",
        gt=0,
        unit="s",
    )
    max_frame: int = option(
        16 * _MIB, "Maximum length of a frame of a message.", ge=1024, le=2**31 - 1, unit="bytes"
    )
    max_input_bytes: int = option(
        256 * _MIB,
        "Maximum size of the results of other jobs that one job gets, as the callback of a chord "
        "does; a job that would get more fails.",
        ge=1024,
        unit="bytes",
    )
    max_queue_length: int = option(
        10_000_000,
        "Maximum number of unfinished jobs in one queue; more are refused.",
        ge=1,
        unit="jobs",
    )
    max_queues: int = option(
        10_000,
        "Maximum number of queues of a broker; jobs for others are refused.",
        ge=1,
        unit="queues",
    )
    max_new_queues: int = option(
        1000,
        "Maximum number of new queues without workers of one client, or of the clients with one "
        "key; jobs for more queues are refused.",
        ge=1,
        unit="queues",
    )
    empty_queue_ttl: float = option(
        600.0,
        "An empty queue without workers is forgotten after this time, unless it is paused, has "
        "limits or has failed jobs.",
        ge=60,
        unit="s",
    )
    max_peers: int = option(10_000, "Maximum number of peers of a broker.", ge=1, unit="peers")
    max_message_rate: float = option(
        0.0,
        "Maximum rate of requests, calls and publications of one peer; more are refused as "
        "`RateLimited`. 0: no limit.",
        ge=0,
        unit="1/s",
    )
    max_unsent_bytes: int = option(
        64 * _MIB,
        "Maximum size of unsent messages that a broker keeps for one peer; further messages are "
        "not sent to it.",
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
        "Number of jobs of one queue that a broker holds in memory.",
        ge=1,
        unit="jobs",
    )
    dedupe_window: float = option(
        _DAY,
        "How long a finished job's id is refused.",
        ge=0,
        unit="s",
    )
    result_ttl: float = option(_DAY, "How long a result is kept.", ge=0, unit="s")
    failed_ttl: float = option(
        30 * _DAY,
        "How long a failed job is kept for a retry.",
        ge=0,
        unit="s",
    )
    max_failed_bytes: int = option(
        1024 * _MIB,
        "Maximum size of failed jobs; the oldest are removed.",
        ge=0,
        unit="bytes",
    )
    max_job_log_bytes: int = option(
        64 * 1024,
        "Maximum size of the log of one job of a task with `keep_logs`, all attempts together; the "
        "oldest lines are dropped. The worker limits what it sends, the broker what it keeps.",
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
        "Treatment of jobs of legacy clients in a queue without workers: workers of the default "
        "queue run them, they wait, or they are refused.",
    )
    priority_seconds: float = option(
        60.0,
        "Seconds of waiting time that one step of priority is worth.",
        ge=0,
        unit="s",
    )
    disk_reserve: int = option(
        256 * _MIB,
        "Minimum free disk space; with less, jobs are refused.",
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
        "Number of jobs that a worker runs at once; 0: one per CPU, or 1,000 in the pool asyncio.",
        ge=0,
        unit="jobs",
    )
    min_concurrency: int = option(
        0,
        "Minimum number of slots of a worker: it uses up to `concurrency` while all are busy, and "
        "fewer when idle. 0: always all.",
        ge=0,
        unit="jobs",
    )
    pool: str = option("prefork", "Worker pool that runs the jobs.", **TEXT)
    allow_callables: tuple[str, ...] = option(
        (),
        "Patterns of dotted paths that a message may name instead of a task.",
        **NAMES,
    )
    shutdown_grace: float = option(
        30.0,
        "Time that running jobs get when a worker stops.",
        ge=0,
        unit="s",
    )
    cancel_grace: float = option(
        5.0,
        "Time that a cancelled running job gets to end before its process is killed or its thread "
        "is abandoned.",
        ge=0,
        unit="s",
    )
    max_abandoned_threads: int = option(
        0,
        "Maximum number of unresponsive threads, whose jobs ran past their timeout or ignored a "
        "cancel, in a worker; beyond it the worker hands back its jobs and restarts. 0: the number "
        "of slots.",
        ge=0,
        unit="threads",
    )
    routing_strategy: str = option(
        "least-recently-used",
        "Strategy that chooses the worker of the next jobs.",
        **TEXT,
    )
    queue_routing_strategies: tuple[tuple[str, str], ...] = option(
        (),
        'Different `routing_strategy` for some queues, as "reports:sticky,media:round-robin".',
        **QUEUE_ROUTING_STRATEGIES,
    )
    queue_limits: tuple[tuple[str, str, int], ...] = option(
        (),
        "How many jobs of a queue may start per time, and run at a time, over all workers and "
        "tasks; the limits of tasks and keys apply as well.",
        **QUEUE_LIMITS,
    )
    queue_order: str = option(
        "weighted-fair", "Order in which a worker gets jobs from its queues.", **TEXT
    )
    metrics_bind: str = option(
        "",
        "Address at which a broker or worker serves its metrics to Prometheus; port 0 chooses a "
        "free port. Addresses that other machines can reach require `insecure`.",
        **METRICS_BIND,
    )
    metrics_max_queues: int = option(
        100,
        'Maximum number of queues with their own metrics; later ones are counted as "other".',
        ge=1,
        unit="queues",
    )
    metrics_max_tasks: int = option(
        1000,
        "Maximum number of tasks with their own metrics, counted per queue; later ones are counted "
        'as "other" of their queue.',
        ge=1,
        unit="tasks",
    )
    metrics_wait_buckets: tuple[tuple[str, str], ...] = option(
        (),
        "Upper bounds in seconds of the histogram of waiting times, by queue and task; the first "
        "pattern that matches counts, such as `reports/*`.",
        **BUCKETS,
    )
    metrics_run_buckets: tuple[tuple[str, str], ...] = option(
        (),
        "The same for the histogram of run times.",
        **BUCKETS,
    )
    middleware: tuple[str, ...] = option(
        ("log-context",),
        "Middlewares around submission and execution, the outermost first.",
        **NAMES,
    )
    load_plugins: tuple[str, ...] = option(
        (),
        "Modules to load as plugins, in addition to those of installed distributions.",
        **NAMES,
    )
    disabled_plugins: tuple[str, ...] = option((), "Plugins that are not loaded.", **NAMES)
    log_level: Literal["debug", "info", "warning", "error", "critical"] = option(
        "info",
        "Lowest level of logged lines.",
    )
    log_format: Literal["text", "json"] = option(
        "text",
        "Format of the lines of EventMQ's log handler: text, or one JSON object per line.",
    )
    log_handlers: Literal["keep", "replace"] = option(
        "keep",
        "Whether commands keep the handlers that the app's modules have added to the root logger, "
        "and use EventMQ's handler only if there are none, or replace them.",
    )
    insecure: bool = option(
        False,  # noqa: FBT003 - the default of a field
        "Serve other machines without encryption and without keys.",
    )
    plugin_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> str:
        """Return the source of a setting: ``default``, a file, a variable or ``argument``."""
        return self.sources.get(name, "default")

    def queue_of(self, task: str) -> str:
        """Return the queue of a task without one: that of its route, or the default queue."""
        fitting = (queue for pattern, queue in self.routes if fnmatchcase(task, pattern))
        return next(fitting, self.default_queue)


#: Name -> declaration, for the settings that a source may set.
FIELDS: Mapping[str, Option] = {
    name: option for name, option in options_of(Settings).items() if option.doc
}

#: Former name of a setting -> its name. If a source uses the former one, the error has the new one.
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
