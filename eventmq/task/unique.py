"""Unique jobs: the option ``unique``, and the key that it makes of a call's arguments.

The broker decides whether a key is free; this module makes the key for the headers.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection
from dataclasses import dataclass, replace
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal

from eventmq.errors import SettingsError
from eventmq.job import JobState
from eventmq.task import values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventmq.headers import Headers

__all__ = ["Unique", "check_key", "key_maker", "limit_key_maker", "read_unique"]

#: Prefix of a template whose keys are shared by all tasks.
SHARED = "*:"

#: Maximum length of a key in bytes of UTF-8; a longer one is cut and gets a digest of the whole.
MAX_KEY = 255

_MODES = ("reject", "replace", "keep_last")

_ALLOWED = "a key template such as 'user:{to}', or Unique(key, mode=..., period=..., states=...)"


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one job with a key, for ``unique=`` of a task or of a call.

    Args:
        key: A template over the arguments of the call by their names, in the form of
            `str.format`: ``"user:{to}"``. Text without braces is a constant key. Keys of different
            tasks are different, unless the template begins with ``*:``.
        mode: What happens when another job holds the key. ``"reject"``: the new job is refused with
            `DuplicateJob`. ``"replace"``: a waiting job is cancelled and the new one takes its
            place with its own due time (debounce); while the other job runs, the new one is
            refused. ``"keep_last"``: a waiting job is cancelled and the new one gets its due time
            and its place in the queue; while the other job runs, the new one waits for its end.
        period: Seconds since the admission of an earlier job that ran, during which the key remains
            in use although that job has ended; None for none. Limited by the broker's
            ``dedupe_window``.
        states: The states in which an earlier job holds the key; by default the unfinished ones.

    Raises:
        SettingsError: A value is not allowed.
    """

    key: str
    mode: Literal["reject", "replace", "keep_last"] = "reject"
    period: float | None = None
    states: Collection[str] | None = None

    def __post_init__(self) -> None:
        values.text("the key of unique", self.key)
        if self.mode not in _MODES:
            values.refuse("the mode of unique", self.mode, ", ".join(map(repr, _MODES)))
        if self.period is not None:
            values.seconds("the period of unique", self.period, zero=False)
        all_states = sorted(JobState)
        if self.states is not None and (
            isinstance(self.states, str) or not self.states or set(self.states) - set(all_states)
        ):
            values.refuse("states of unique", self.states, f"some of {', '.join(all_states)}")
        _fields(self.key)

    def into(self, headers: Headers) -> Headers:
        """Return the headers with all options but the key."""
        return replace(
            headers,
            unique_mode="" if self.mode == "reject" else self.mode,
            unique_period=float(self.period or 0.0),
            unique_states="+".join(sorted(self.states or ())),
        )


def read_unique(value: object) -> Unique | None:
    """Return the value of an option ``unique`` as a `Unique`.

    Raises:
        SettingsError: The value is neither a template nor a `Unique`.
    """
    if value is None or isinstance(value, Unique):
        return value
    if not isinstance(value, str):
        values.refuse("unique", value, _ALLOWED)
    return Unique(value)


def _fields(template: str) -> list[str]:
    """Return the names of the arguments in a template."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise SettingsError(
            f"the key template {template!r} is malformed: {error}; allowed is {_ALLOWED}"
        ) from error
    arguments = [name.partition(".")[0].partition("[")[0] for name in names]
    for name in arguments:
        if not name.isidentifier():
            raise SettingsError(
                f"the key template {template!r} has {{{name}}}; allowed is the name of an argument"
            )
    return arguments


def _catch_all(signature: inspect.Signature) -> str | None:
    """Return the name of the ``**kwargs`` parameter, if any."""
    kinds = {p.kind: name for name, p in signature.parameters.items()}
    return kinds.get(inspect.Parameter.VAR_KEYWORD)


def key_maker(
    unique: Unique, task: str, signature: inspect.Signature
) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    """Return a function that makes the key of a call.

    Args:
        unique: The option.
        task: Name of the task.
        signature: Signature of its function.

    Raises:
        SettingsError: The template names an argument that the function does not have.
    """
    scope = "" if unique.key.startswith(SHARED) else f"{task}:"
    return _maker("unique", unique.key, scope, task, signature)


def limit_key_maker(
    template: str, task: str, signature: inspect.Signature
) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    """Return a function that makes the key of the limits of a call; see `key_maker`."""
    return _maker("limit_key", template, "", task, signature)


def check_key(option: str, template: object) -> None:
    """Check a key template as far as possible without the function.

    Raises:
        SettingsError: It is malformed.
    """
    if not isinstance(template, str) or not template:
        values.refuse(option, template, "a key template such as 'user:{to}'")
    _fields(template)


def _maker(
    option: str, template: str, scope: str, task: str, signature: inspect.Signature
) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    names, more = _fields(template), _catch_all(signature)
    for name in names:
        if name not in signature.parameters and more is None:
            has = ", ".join(signature.parameters) or "none"
            raise SettingsError(
                f"{option} of task {task} names {name!r}; the arguments of the function are: {has}"
            )

    def make(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if not names:
            return _short(scope + template.format())
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if more is not None:
            arguments = {**arguments[more], **arguments}
        try:
            return _short(scope + template.format_map(arguments))
        except Exception as error:
            problem = f"no argument {error}" if isinstance(error, KeyError) else str(error)
            raise SettingsError(
                f"the key template {template!r} of task {task} cannot be filled in: {problem}"
            ) from error

    return make


def _short(key: str) -> str:
    data = key.encode(errors="surrogatepass")
    if len(data) <= MAX_KEY:
        return key
    digest = hashlib.sha256(data).hexdigest()
    return f"{data[: MAX_KEY - 65].decode(errors='ignore')}#{digest}"
