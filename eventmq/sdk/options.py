"""Options of plugins: a dataclass says what a plugin takes, and makes the object or its options.

Those of worker pools have what the app sets for every pool beside those of the user: `PoolOptions`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from eventmq import conversion
from eventmq.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.execution.executor import Executor
    from eventmq.interfaces import Factory, PluginContext

__all__ = ["PoolOptions", "check_options", "factory", "read_options"]

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


_OF_THE_APP = frozenset({"concurrency", "loader", "arguments", "executor", "initial"})


@dataclass(frozen=True, slots=True)
class PoolOptions(Generic[T]):
    """Options of a worker pool.

    Attributes:
        concurrency: Number of slots.
        loader: ``module:function`` that returns the `Executor` in another process.
        arguments: Keyword arguments of the loader.
        executor: Runs jobs in this process; None where they run in others.
        initial: Slots to begin with, None for all.
        own: The options that the user may set.
    """

    concurrency: int
    loader: str
    arguments: Mapping[str, Any]
    executor: Executor | None
    initial: int | None
    own: T

    @classmethod
    def of(
        cls, context: PluginContext, own: type[T], *, concurrency: int | None = None
    ) -> PoolOptions[T]:
        """Read the options of a factory of pools.

        Example::

            def make_pool(context):
                options = PoolOptions.of(context, Options)
                return Pool(options.concurrency, options.executor, options.own.start_timeout)

        Args:
            context: As the factory got it.
            own: Dataclass of the options that the user may set, as for `read_options`.
            concurrency: Default number of slots; None for one per CPU.

        Raises:
            PluginError: An option is unknown or wrong.
        """
        options = context.options
        slots = options.get("concurrency", concurrency or os.cpu_count() or 1)
        if not isinstance(slots, int) or slots < 1:
            raise PluginError(f"a pool needs a concurrency from 1, not {slots!r}")
        users = {name: value for name, value in options.items() if name not in _OF_THE_APP}
        return cls(
            slots,
            str(options.get("loader", "")),
            options.get("arguments", {}),
            options.get("executor"),
            options.get("initial"),
            read_options(replace(context, options=users), own),
        )
