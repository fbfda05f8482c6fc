"""Which arguments a function takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_generator", "plain_arity", "signature_of"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature, or one that takes anything where a built-in has none."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)  # noqa: ARG005 - takes anything


def plain_arity(signature: inspect.Signature) -> range:
    """Return how many arguments, all by position, the function takes for certain."""
    least = most = 0
    for parameter in signature.parameters.values():
        if parameter.kind in _POSITIONAL:
            most += 1
            least += parameter.default is inspect.Parameter.empty
        elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        elif parameter.default is inspect.Parameter.empty:
            return range(0)
    return range(least, most + 1)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling a function gives a generator, or an async one."""
    inner = inspect.unwrap(function)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
