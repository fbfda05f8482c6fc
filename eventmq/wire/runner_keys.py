"""Key files: read, checked and written. `eventmq.wire.curve` has what is in them.

A pair is ``NAME.key``, which may be shown to anybody, and ``NAME.key_secret``, which only its
owner may read: it is made with mode 0600, and refused where other users of the machine can read
it.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from eventmq.errors import KeyFileError
from eventmq.wire.curve import (
    Certificate,
    ClientKeys,
    format_certificate,
    parse_certificate,
)

__all__ = [
    "PUBLIC",
    "SECRET",
    "client_keys",
    "read_public",
    "read_secret",
    "write_new",
    "write_over",
]

#: Ends of file names, as those of ``zmq.auth``.
PUBLIC, SECRET = ".key", ".key_secret"

#: Bytes of the longest file that is read as one with a key.
_LONGEST = 64 * 1024


def _read(path: Path) -> Certificate:
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise KeyFileError(f"key file {path} cannot be read: {error.strerror}") from error
    if len(data) > _LONGEST:
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
        KeyFileError: There is none, or it holds a secret key, which has to stay where it is used.
    """
    path = Path(path)
    found = _read(path)
    if found.secret:
        msg = f"{path} holds a secret key; name the file beside it that ends in {PUBLIC}"
        raise KeyFileError(msg)
    return found


def read_secret(path: str | Path) -> Certificate:
    """Return the certificate of a secret key file.

    Raises:
        KeyFileError: There is none, or other users can read or write it.
    """
    path = Path(path)
    found = _read(path)
    if not found.secret:
        raise KeyFileError(f"{path} holds no secret key; that one ends in {SECRET}")
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        msg = f"other users can use the secret key in {path}: chmod 600 {path}, or make a new one"
        raise KeyFileError(msg)
    return found


def client_keys(broker_key_file: str, key_file: str) -> ClientKeys:
    """Return what the settings ``broker_key_file`` and ``key_file`` name.

    Raises:
        KeyFileError: One of the files is not what it has to be.
    """
    broker, own = read_public(broker_key_file), read_secret(key_file)
    return ClientKeys(broker.public.encode(), own.public.encode(), own.secret.encode())


def write_new(path: Path, certificate: Certificate, comment: str) -> None:
    """Write a file that must not be there yet; a secret key is readable by its owner only.

    Raises:
        KeyFileError: There is such a file, or it cannot be made.
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
    """Write a public file, or replace it at once as a whole: a broker may be reading it."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_new(new, certificate, comment)
    try:
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from error
