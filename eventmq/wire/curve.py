"""CURVE keys as text: certificates as ZeroMQ's tools write them, checked; nothing touches a file.

A certificate is in ZPL (ZeroMQ RFC 4), in the two sections that ``zmq.auth`` of pyzmq reads and
writes: ``metadata``, and ``curve`` with ``public-key`` and, in a secret one, ``secret-key``. Keys
are 32 bytes, written in Z85 (RFC 32) with 40 characters. `eventmq.wire.runner_keys` has the files,
`eventmq.broker.roles` what the metadata of an authorised client means.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eventmq.errors import KeyFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Certificate",
    "ClientKeys",
    "decode_key",
    "fingerprint",
    "format_certificate",
    "parse_certificate",
]

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {char: value for value, char in enumerate(_Z85)}

#: Characters of a key in Z85, and its bytes.
_CHARACTERS, _BYTES = 40, 32

#: Bytes of a fingerprint: nobody finds another key with the same 96 bits.
_FINGERPRINT = 12

_SECTION = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s*")
_NAME = r"\s+([A-Za-z][A-Za-z0-9_-]*)\s*=\s*"
_VALUE = re.compile(_NAME + r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'#][^\"'#]*))\s*")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A key pair, or its public half; ``metadata`` is what else the file says."""

    public: str
    secret: str = field(default="", repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a peer needs to connect: the broker's public key and its own pair."""

    broker: bytes
    public: bytes
    secret: bytes = field(repr=False)


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of a key.

    Raises:
        KeyFileError: It is not 40 characters of Z85. The message does not show it.
    """
    if len(text) != _CHARACTERS or not all(char in _DIGITS for char in text):
        raise KeyFileError(f"a CURVE key is {_CHARACTERS} characters of Z85")
    key = b""
    for start in range(0, _CHARACTERS, 5):
        number = 0
        for char in text[start : start + 5]:
            number = number * 85 + _DIGITS[char]
        if number >= 1 << 32:
            raise KeyFileError("a CURVE key has five characters that are no four bytes in Z85")
        key += number.to_bytes(4, "big")
    return key


def fingerprint(key: bytes) -> str:
    """Return the name of a public key of 32 bytes: 16 characters that need no quoting."""
    if len(key) != _BYTES:
        raise KeyFileError(f"a CURVE key has {_BYTES} bytes, not {len(key)}")
    digest = hashlib.blake2b(key, digest_size=_FINGERPRINT).digest()
    return base64.urlsafe_b64encode(digest).decode()


def format_certificate(certificate: Certificate, comment: str) -> str:
    """Write a certificate; values have no double quotes and no line ends."""
    lines = [*(f"#   {line}".rstrip() for line in comment.splitlines()), "", "metadata"]
    lines += [f'    {name} = "{value}"' for name, value in certificate.metadata.items()]
    lines += ["", "curve", f'    public-key = "{certificate.public}"']
    if certificate.secret:
        lines.append(f'    secret-key = "{certificate.secret}"')
    return "\n".join(lines) + "\n"


def parse_certificate(text: str) -> Certificate:
    """Read a certificate.

    Raises:
        KeyFileError: It is none, or a key in it is none; the message shows no key.
    """
    sections: dict[str, dict[str, str]] = {}
    values: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := _SECTION.fullmatch(line):
            values = sections.setdefault(found[1], {})
        elif values is not None and (found := _VALUE.fullmatch(line)):
            values[found[1]] = (found[2] or found[3] or found[4] or "").strip()
        else:
            msg = f"line {number} is neither a section nor an indented NAME = VALUE"
            raise KeyFileError(msg)
    keys = sections.get("curve", {})
    if "public-key" not in keys:
        raise KeyFileError("there is no public-key in a section curve")
    secret = keys.get("secret-key", "")
    for key in filter(None, (keys["public-key"], secret)):
        decode_key(key)
    return Certificate(keys["public-key"], secret, sections.get("metadata", {}))
