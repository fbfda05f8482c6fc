"""CURVE keys: certificates in the format of ZeroMQ's tools, and their files.

A certificate is in ZPL (ZeroMQ RFC 4), in the two sections that ``zmq.auth`` of pyzmq reads and
writes: ``metadata``, and ``curve`` with ``public-key`` and, in a secret certificate,
    ``secret-key``.
Keys are 32 bytes, written in Z85 (RFC 32) with 40 characters. `eventmq.broker.grants` reads the
metadata of an authorised client.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from eventmq.errors import KeyFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "PUBLIC",
    "SECRET",
    "Certificate",
    "ClientKeys",
    "client_keys",
    "decode_key",
    "fingerprint",
    "format_certificate",
    "parse_certificate",
    "read_public",
    "read_secret",
    "write_new",
    "write_over",
]


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

_DIGITS = {char: value for value, char in enumerate(_Z85)}

#: Characters of a key in Z85, and its bytes.
_CHARACTERS, _BYTES = 40, 32

#: Bytes of a fingerprint: to make another key with the same 96 bits is infeasible.
_FINGERPRINT = 12

_SECTION = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s*")

_NAME = r"\s+([A-Za-z][A-Za-z0-9_-]*)\s*=\s*"

_VALUE = re.compile(_NAME + r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'#][^\"'#]*))\s*")

#: Suffixes of file names, as in ``zmq.auth``.
PUBLIC, SECRET = ".key", ".key_secret"

#: Bytes of the longest key file.
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Certificate:
    """A key pair, or its public half, with the metadata of the file."""

    public: str
    secret: str = field(default="", repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """Keys that a peer needs to connect: the broker's public key and its own pair, in Z85.

    ``others`` are the public keys of its other brokers, in the order of the setting ``broker``
    without the first one; empty if all brokers have the same key.
    """

    broker: bytes
    public: bytes
    secret: bytes = field(repr=False)
    others: tuple[bytes, ...] = ()

    def of(self, position: int) -> ClientKeys:
        """Return the keys to connect to the broker at a position of the setting ``broker``."""
        if not position or not self.others:
            return self
        return replace(self, broker=self.others[position - 1])

    def having(self, key: str) -> ClientKeys:
        """Return the keys to connect to a broker with another public key."""
        return replace(self, broker=key.encode())


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of a key.

    Raises:
        KeyFileError: The text is not 40 characters of Z85. The message does not show it.
    """
    if len(text) != _CHARACTERS or not all(char in _DIGITS for char in text):
        raise KeyFileError(f"a CURVE key is {_CHARACTERS} characters of Z85")
    key = b""
    for start in range(0, _CHARACTERS, 5):
        number = 0
        for char in text[start : start + 5]:
            number = number * 85 + _DIGITS[char]
        if number >= 1 << 32:
            raise KeyFileError("a CURVE key has five characters that are not four bytes in Z85")
        key += number.to_bytes(4, "big")
    return key


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key of 32 bytes: 16 characters that need no quoting."""
    if len(key) != _BYTES:
        raise KeyFileError(f"a CURVE key has {_BYTES} bytes, not {len(key)}")
    digest = hashlib.blake2b(key, digest_size=_FINGERPRINT).digest()
    return base64.urlsafe_b64encode(digest).decode()


def format_certificate(certificate: Certificate, comment: str) -> str:
    """Return the text of a certificate; values must have no double quotes or line ends."""
    lines = [*(f"#   {line}".rstrip() for line in comment.splitlines()), "", "metadata"]
    lines += [f'    {name} = "{value}"' for name, value in certificate.metadata.items()]
    lines += ["", "curve", f'    public-key = "{certificate.public}"']
    if certificate.secret:
        lines.append(f'    secret-key = "{certificate.secret}"')
    return "\n".join(lines) + "\n"


def parse_certificate(text: str) -> Certificate:
    """Read a certificate.

    Raises:
        KeyFileError: The text or a key in it is malformed. The message shows no key.
    """
    sections: dict[str, dict[str, str]] = {}
    values: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if match := _SECTION.fullmatch(line):
            values = sections.setdefault(match[1], {})
        elif values is not None and (match := _VALUE.fullmatch(line)):
            values[match[1]] = (match[2] or match[3] or match[4] or "").strip()
        else:
            raise KeyFileError(f"line {number} is neither a section nor an indented NAME = VALUE")
    keys = sections.get("curve", {})
    if "public-key" not in keys:
        raise KeyFileError("there is no public-key in a section curve")
    secret = keys.get("secret-key", "")
    for key in filter(None, (keys["public-key"], secret)):
        decode_key(key)
    return Certificate(keys["public-key"], secret, sections.get("metadata", {}))


def _read(path: Path) -> Certificate:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"key file {path} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise KeyFileError(f"{path} is longer than any key file")
    try:
        return parse_certificate(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is no key file: it is not text") from None
    except KeyFileError as error:
        raise KeyFileError(f"{path} is no key file: {error}") from error


def read_public(path: str | Path) -> Certificate:
    """Return the certificate of a public key file.

    Raises:
        KeyFileError: The file cannot be read, or has a secret key, which must stay where it is
            used.
    """
    path = Path(path)
    certificate = _read(path)
    if certificate.secret:
        raise KeyFileError(
            f"{path} holds a secret key; name the file beside it that ends in {PUBLIC}"
        )
    return certificate


def read_secret(path: str | Path) -> Certificate:
    """Return the certificate of a secret key file.

    Raises:
        KeyFileError: The file cannot be read, or other users can read or write it.
    """
    path = Path(path)
    certificate = _read(path)
    if not certificate.secret:
        raise KeyFileError(f"{path} holds no secret key; that one ends in {SECRET}")
    if path.stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise KeyFileError(
            f"other users can use the secret key in {path}: chmod 600 {path}, or make a new one"
        )
    return certificate


def client_keys(broker_key_files: Sequence[str], key_file: str) -> ClientKeys:
    """Return the keys in the files of the settings ``broker_key_file`` and ``key_file``.

    Raises:
        KeyFileError: One of the files cannot be used; see `read_public` and `read_secret`.
    """
    broker, *others = [read_public(file).public.encode() for file in broker_key_files]
    own = read_secret(key_file)
    return ClientKeys(broker, own.public.encode(), own.secret.encode(), tuple(others))


def write_new(path: Path, certificate: Certificate, comment: str) -> None:
    """Write a new file; only its owner can read a file with a secret key.

    Raises:
        KeyFileError: The file exists already, or cannot be made.
    """
    mode = 0o600 if certificate.secret else 0o644
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise KeyFileError(f"{path} is there already; keys are never overwritten") from None
    except OSError as error:
        raise KeyFileError(f"{path} cannot be made: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(format_certificate(certificate, comment))
        file.flush()
        os.fsync(file.fileno())


def write_over(path: Path, certificate: Certificate, comment: str) -> None:
    """Write or replace a public file atomically, since a broker may be reading it."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_new(new, certificate, comment)
    try:
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error
