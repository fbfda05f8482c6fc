"""How a task names a retry policy with arguments: ``retry_policy=fixed(delay=5.0)``.

A `Backoff` is a name and options, checked when it is made. Its text is what the header
``backoff`` carries: ``fixed:{"delay":5.0}``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError
from eventmq.plugins.retries.exponential import ExponentialDelay
from eventmq.plugins.retries.fixed import FixedDelay

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Backoff", "exponential", "fixed"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """A retry policy by name, and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}:{json.dumps(dict(self.options), separators=(',', ':'))}"

    @classmethod
    def parse(cls, text: str) -> Backoff:
        """Read what ``str()`` writes; a plain name has no options.

        Raises:
            PluginError: What follows the name is no JSON object.
        """
        name, _, rest = text.partition(":")
        try:
            options = json.loads(rest) if rest else {}
        except ValueError as error:
            raise PluginError(f"retry policy {text[:80]!r} is not name:json") from error
        if not isinstance(options, dict):
            raise PluginError(f"retry policy {text[:80]!r}: the options are a JSON object")
        return cls(name, options)


def fixed(delay: float = 1.0) -> Backoff:
    """Wait the same time before every attempt.

    Args:
        delay: Seconds, from 0.

    Raises:
        PluginError: The argument is not allowed.
    """
    return Backoff("fixed", {"delay": FixedDelay(delay).seconds})


def exponential(base: float = 1.0, cap: float = 600.0) -> Backoff:
    """Wait a random time below a limit that doubles with every attempt.

    Args:
        base: The first limit in seconds, more than 0.
        cap: The largest limit in seconds, at least ``base``.

    Raises:
        PluginError: An argument is not allowed.
    """
    policy = ExponentialDelay(base, cap)
    return Backoff("exponential", {"base": policy.base, "cap": policy.cap})
