"""What an address says about who can reach it. Asked by all that bind one."""

from __future__ import annotations

__all__ = ["is_local"]


def is_local(address: str) -> bool:
    """Say whether an address can be reached from this machine only."""
    scheme, _, rest = address.partition("://")
    if scheme in {"inproc", "ipc"}:
        return True
    host = rest.rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")
