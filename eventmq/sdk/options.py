"""Options of plugins: a dataclass says what a plugin takes, and makes the object or its options."""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from eventmq import conversion

if TYPE_CHECKING:
    from eventmq.interfaces import Factory, PluginContext

__all__ = ["check_options", "factory", "read_options"]

T = TypeVar("T")


def read_options(context: PluginContext, kind: type[T]) -> T:
    """Return the options that a factory got, as an object of a dataclass.

    Its fields are the options; `option` declares bounds and other things that a default alone does
    not say. Text is accepted for every type but a table. A ValueError of ``__post_init__`` is an
    error of the options. A class that is no dataclass takes none.

    Example::

        @dataclass(frozen=True)
        class Options:
            path: str  # must be given
            durable: bool = True
            level: int = option(6, ge=1, le=9)


        def make_backend(context):
            return Files(read_options(context, Options).path)

    Args:
        context: As the factory got it.
        kind: The class.

    Raises:
        PluginError: An option is unknown, missing or not allowed. The message has the option, the
            nearest known name or what would be right, and never a text that was given, which may be
            a secret. The registry adds the plugin, its distribution and where the options stand.
    """
    return _read(context.name, kind, context.options)


def check_options(name: str, kind: type[Any], /, **given: Any) -> dict[str, Any]:
    """Return options as plain data, checked: for functions that make a `Backoff` or a `Timing`.

    So a wrong one is an error in the line that says it, not when the plugin reads it.

    Example::

        def linear(step: float = 1.0) -> Backoff:
            return Backoff("linear", check_options("linear", Linear, step=step))

    Args:
        name: The name of what takes the options.
        kind: As of `read_options`.
        **given: The options.

    Raises:
        PluginError: As of `read_options`.
    """
    made = _read(name, kind, given)
    return {option: getattr(made, option) for option in given}


def factory(kind: type[T]) -> Factory[T]:
    """Return a factory for a class that needs nothing but its options.

    A dataclass gets its fields from the options; any other class takes no options.

    Example::

        @hookimpl
        def eventmq_retry_policies():
            return {"linear": factory(Linear)}

    Args:
        kind: The class.
    """
    return partial(read_options, kind=kind)


def _read(name: str, kind: type[T], given: Any) -> T:
    if is_dataclass(kind):
        return conversion.read_options(kind, given, owner=repr(name))
    conversion.read_values({}, given, owner=repr(name))
    return kind()
