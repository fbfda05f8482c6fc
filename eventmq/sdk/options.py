"""Options of plugins: a dataclass declares them, and is the plugin or its options.

Pools have options that the app sets for every pool, in addition to those of the user:
`PoolOptions`.
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
    """Return the options of a factory's context, as an object of a dataclass.

    Its fields are the options; `option` declares bounds and other properties that a default alone
    cannot express. Text is accepted for every type but a table. A ValueError of ``__post_init__``
    is an error of the options. A class that is not a dataclass has no options.

    Example::

        @dataclass(frozen=True)
        class Options:
            path: str  # required
            durable: bool = True
            level: int = option(6, ge=1, le=9)


        def make_backend(context):
            return Files(read_options(context, Options).path)

    Args:
        context: The argument of the factory.
        kind: The class.

    Raises:
        PluginError: An option is unknown, missing or not allowed. The message has the option, the
            nearest known name or the allowed values, and never a text from the settings, which may
            be a secret. The registry adds the plugin, its distribution and the source of the
            options.
    """
    return _read(context.name, kind, context.options)


def check_options(name: str, kind: type[Any], /, **given: Any) -> dict[str, Any]:
    """Return checked options as plain data: for functions that make a `Backoff` or a `Timing`.

    A wrong option is then an error in the line that sets it, not when the plugin reads it.

    Example::

        def linear(step: float = 1.0) -> Backoff:
            return Backoff("linear", check_options("linear", Linear, step=step))

    Args:
        name: The name of the policy or trigger, for messages.
        kind: The class, as for `read_options`.
        **given: The options.

    Raises:
        PluginError: As for `read_options`.
    """
    checked = _read(name, kind, given)
    return {option: getattr(checked, option) for option in given}


def factory(kind: type[T]) -> Factory[T]:
    """Return a factory for a class that needs only its options.

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
        executor: Runs jobs in this process; None if they run in others.
        initial: Number of slots at the start, None for all.
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
            context: The argument of the factory.
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
