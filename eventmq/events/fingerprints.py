"""What kind of error it is: its type, and a fingerprint that errors of one place share.

The error is encoded as in `eventmq.wire.results`. The place is the files and functions of its
traceback; folders, line numbers and the message are left out, so that another machine, a new line
above and another argument do not make a new error.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import msgpack

__all__ = ["fingerprint"]

_FRAME = re.compile(r'File "(?:[^"]*[/\\])?([^"/\\]*)", line \d+, in (\S+)')
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")

#: A longer error is looked at anew each time.
_REMEMBERED = 16 * 1024


def fingerprint(error: bytes) -> tuple[str, str]:
    """Return the dotted type of an encoded error, "" where it has none, and its fingerprint."""
    return _remembered(error) if len(error) <= _REMEMBERED else _fingerprint(error)


def _fingerprint(error: bytes) -> tuple[str, str]:
    try:
        kind, message, traceback, *_ = msgpack.unpackb(error)
        frames = _FRAME.findall(traceback)
        place = repr(frames) if frames else _VARYING.sub("_", message[:400])
    except Exception:  # noqa: BLE001 - an error of any shape is an error
        return "", ""
    text = f"{kind}\0{place}"
    return kind, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


_remembered = lru_cache(maxsize=256)(_fingerprint)
