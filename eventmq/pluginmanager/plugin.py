"""What is known of one plugin, and of the distribution that it came in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["Plugin", "extra_of", "off_switch", "own_distribution", "requirement"]

_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


class Plugin(NamedTuple):
    """One plugin, loaded or built in.

    ``origin`` is ``built in``, the name of a distribution, ``setting`` or ``argument``;
    ``provides`` are (hook, name).
    """

    name: str
    origin: str
    hooks: tuple[str, ...] = ()
    provides: tuple[tuple[str, str], ...] = ()
    version: str = ""
    distribution: Distribution | None = None


def off_switch(name: str) -> str:
    """Return how a plugin is switched off, for the end of a message."""
    return f"switch it off with -p no:{name} or EVENTMQ_DISABLED_PLUGINS={name}"


def own_distribution() -> Distribution | None:
    """Return the distribution of EventMQ, None where it runs from a checkout."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("eventmq")
    except PackageNotFoundError:
        return None


def extra_of(distribution: Distribution, library: str) -> str:
    """Return the extra of a distribution that brings a library, "" if none is known to."""
    plain = re.sub(r"[._-]+", "-", library).lower()
    for line in distribution.requires or ():
        name = _REQUIREMENT.match(line)
        extra = _EXTRA.search(line)
        if name and extra and re.sub(r"[._-]+", "-", name[0]).lower() == plain:
            return extra[1]
    return ""


def requirement(distribution: Distribution | None, library: str) -> str:
    """Return what to ``pip install`` in order to get a library that a plugin needs."""
    extra = extra_of(distribution, library) if distribution else ""
    return f"{distribution.name}[{extra}]" if distribution and extra else library
