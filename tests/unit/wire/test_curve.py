"""Certificates as text, in the format of ZeroMQ's own tools."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import zmq
import zmq.auth
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from eventmq.errors import KeyFileError
from eventmq.wire.curve import (
    Certificate,
    ClientKeys,
    decode_key,
    fingerprint,
    format_certificate,
    parse_certificate,
)

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())


def test_what_is_written_is_read_back() -> None:
    certificate = Certificate(PUBLIC, SECRET, {"name": "web", "roles": "client,worker"})
    assert certificate == parse_certificate(format_certificate(certificate, "a comment\nof two"))


def test_pyzmq_reads_our_certificates(tmp_path) -> None:
    path = tmp_path / "web.key_secret"
    path.write_text(format_certificate(Certificate(PUBLIC, SECRET, {"name": "web"}), "ours"))
    assert (PUBLIC.encode(), SECRET.encode()) == zmq.auth.load_certificate(path)


def test_we_read_certificates_of_pyzmq(tmp_path) -> None:
    paths = zmq.auth.create_certificates(tmp_path, "theirs", {"email": "a@b.c"})
    public, secret = (parse_certificate(Path(path).read_text(encoding="utf-8")) for path in paths)
    assert ("", public.public) == (public.secret, secret.public)
    assert zmq.curve_public(secret.secret.encode()).decode() == public.public
    assert {"email": "a@b.c"} == secret.metadata


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_decoded_as_in_z85(key: bytes) -> None:
    assert key == decode_key(z85.encode(key).decode())


@pytest.mark.parametrize(
    "text",
    ["", "short", "~" * 40, "#" * 40, PUBLIC + "0", PUBLIC[:-1] + " "],
    # A key differs in each process, and pytest-xdist compares the names of tests.
    ids=["empty", "short", "tildes", "hashes", "longer", "blank"],
)
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        decode_key(text)
    assert not text or text not in str(caught.value)


def test_fingerprints_differ_and_need_no_quoting() -> None:
    names = {fingerprint(z85.decode(zmq.curve_keypair()[0])) for _ in range(100)}
    assert 100 == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{16}", name) for name in names)


def test_a_fingerprint_is_of_a_whole_key() -> None:
    with pytest.raises(KeyFileError, match="32 bytes, not 31"):
        fingerprint(b"x" * 31)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no public-key"),
        ("curve\n", "no public-key"),
        (f'    public-key = "{PUBLIC}"\n', "line 1"),
        ('curve\n    public-key = "abc\n', "line 2"),
        ('curve\n    public-key = "abc"\n', "40 characters"),
        (f'curve\n    public-key = "{PUBLIC}"\n    secret-key = "abc"\n', "40 characters"),
        ("ssh-ed25519 AAAA me@here\n", "line 1"),
    ],
    ids=["empty", "no key", "no section", "quote", "short", "short secret", "ssh"],
)
def test_what_is_no_certificate_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(KeyFileError, match=problem):
        parse_certificate(text)


@given(st.text())
def test_any_text_is_a_certificate_or_refused(text: str) -> None:
    with contextlib.suppress(KeyFileError):
        parse_certificate(text)


def test_no_secret_is_in_a_repr() -> None:
    """A repr may appear in logs and tracebacks."""
    keys = ClientKeys(PUBLIC.encode(), PUBLIC.encode(), SECRET.encode())
    assert SECRET not in repr(keys)
    assert SECRET not in repr(Certificate(PUBLIC, SECRET))
