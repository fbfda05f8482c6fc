"""Descriptors of a process that serves many: each connection takes one."""

from __future__ import annotations

import logging

try:
    import resource
except ImportError:  # pragma: no cover - Windows
    resource = None  # type: ignore[assignment]

__all__ = ["OWN", "provide"]

logger = logging.getLogger("eventmq.cli")

#: Descriptors that a process itself has, with some to spare: sockets, files, logs.
OWN = 100


def provide(peers: int) -> int:
    """Take what the system lets this process have, and warn where that is too little.

    Many systems let a process open 1,024 files unless it asks, and then more than anybody needs.

    Args:
        peers: Connections that there may be at a time.

    Returns:
        How many descriptors the process may have now, 0 where nobody says.
    """
    if resource is None:  # pragma: no cover - Windows
        return 0
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = peers + OWN if most == unlimited else min(peers + OWN, most)
    if least != unlimited and least < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        least = wanted
    if least != unlimited and least < peers + OWN:
        logger.warning(
            "only %d descriptors are allowed, but %d peers may come: further ones have to wait "
            "until others leave; raise the limit with ulimit -n", least, peers,
        )  # fmt: skip
    return least
