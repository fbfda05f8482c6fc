"""Addresses of metrics pages."""

from __future__ import annotations

import re

from eventmq.errors import SettingsError

__all__ = ["DEFAULT_BIND", "shown", "split"]

DEFAULT_BIND = "127.0.0.1:9472"

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})", re.ASCII)


def split(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Raises:
        SettingsError: The text is not such an address.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > 65535:  # noqa: PLR2004 - the last port
        raise SettingsError(f"{text!r} is not HOST:PORT, as in {DEFAULT_BIND}")
    return match[1] or match[2], int(match[3])


def shown(host: str, port: int) -> str:
    """Return ``HOST:PORT`` as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
