"""Every decoder of every protocol reads anything, or refuses it with the error of its protocol.

One example is given to all of them, as frames and as the bytes of these frames in a row: so each
reads 10,000 in the time that one would take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventmq.errors import KeyFileError, ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire import batches, streams, zap_thread
from eventmq.wire.commands import decode
from eventmq.wire.curve import parse_certificate
from eventmq.wire.features import Features, Status, parse_queues
from eventmq.wire.results import decode_error, decode_frames
from eventmq_contrib.gateways.emp import protocol as emp
from eventmq_contrib.gateways.majordomo import messages as majordomo
from eventmq_contrib.gateways.mc0 import machine as mc0
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

#: Examples that each decoder reads.
EXAMPLES = 10_000

#: Beginnings of valid messages.
WORDS = [
    b"", b"eMQP/1.0", b"REQUEST", b"REPLY", b"INFORM", b"SCHEDULE", b"PUBLISH", b"worker", b"id",
    b"MDPC02", b"MDPW02", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06", b"PING", b"PUT",
    b"CONNECT", b"TTL", b"TOPIC", b"ID", b"SUB", b"timeout:", b"batch:2", b"held:1+", b"%", b"%FF",
    b"chunk:1", b'[[10, "q"]]', b"[40, 'email']", b'{"op": "a", "data": {}}', b"\xef\xbb\xbf{}",
    b'{"status": "failure"}', b"\x00\x00\x00\x08\x00\x00\x00\x00\x01\x00\x00\x00", b"\0\0\0\x04",
    b"\x05\0\0\0", b"\0\0\0\0\0\0\0\x01", b"\x92\x91", b"\x98\xa1j\x01", b"\xc4\x01", b"\xc1",
    b"\xdd\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff", b"\xed\xa0\x80", b"1.0", b"CURVE", b"curve\n",
    b'    public-key = "', b"0" * 40, "\N{SUPERSCRIPT TWO}".encode(), b"9" * 20, b":", b",", b"+",
]  # fmt: skip
FRAMES = st.lists(st.sampled_from(WORDS) | st.binary(max_size=12), max_size=12)


def emp_messages(data: bytes) -> None:
    decoder = emp.Decoder(1000)
    decoder.feed(data)
    list(decoder.messages())


OF_FRAMES: list[Callable[[list[bytes]], object]] = [
    decode,
    mc0.decode,
    mc0.identifier,
    zap_thread.read_request,
    lambda frames: majordomo.decode_client(frames, b"MDPC02"),
    lambda frames: majordomo.decode_worker(frames, b"MDPW02"),
]
OF_BYTES: list[Callable[[bytes], object]] = [
    emp_messages,
    emp.decode_operation,
    emp.decode_result,
    batches.decode_chunk,
    batches.decode_exceptions,
    batches.decode_outcomes,
    streams.decode_parts,
    streams.decode_progress,
    lambda data: batches.decode_batch(data, 2),
    lambda data: batches.decode_graph(data, 2),
    decode_error,
    decode_frames,
]
OF_TEXT: list[Callable[[str], object]] = [
    parse_headers,
    parse_queues,
    batches.parse_chunk_number,
    streams.PartHead.parse,
    streams.parse_end,
    streams.parse_progress,
    Features.parse,
    Status.parse,
    parse_certificate,
]

#: Exceptions that a decoder may raise.
REFUSED = (ProtocolError, emp.EmpError, KeyFileError)


@settings(max_examples=examples(EXAMPLES))
@given(FRAMES)
def test_any_bytes_are_read_or_refused_by_every_decoder(frames: list[bytes]) -> None:
    data = b"".join(frames)
    text = data.decode(errors="replace")
    for decoders, given_ in ((OF_FRAMES, frames), (OF_BYTES, data), (OF_TEXT, text)):
        for decoder in decoders:
            try:
                decoder(given_)  # type: ignore[operator]
            except REFUSED:
                continue


def test_no_decoder_is_left_out() -> None:
    """A new decoder must be added here, or named with a reason."""
    named = {"decode", "decode_error", "decode_frames", "parse_queues", "parse_certificate"}
    named |= {"decode_parts", "decode_progress", "parse_end", "parse_progress"}
    named |= {"decode_chunk", "decode_exceptions", "decode_outcomes", "decode_batch"}
    named |= {"decode_graph"}
    modules = (mc0, majordomo, emp, batches, streams)
    decoders = {
        name
        for module in modules
        for name in module.__all__
        if name.startswith(("decode", "parse"))
    }
    named |= {"decode_client", "decode_worker", "decode_operation", "decode_result"}
    assert decoders - named - {"parse_chunk_number"} == set()


@pytest.mark.parametrize("size", [0, 1, 3, 999, 1001, 70_000])
def test_long_bytes_of_one_kind_are_read_or_refused(size: int) -> None:
    """Deep, long and empty data, which a generator of short examples does not make."""
    for byte in (b"\0", b"\xff", b"[", b"{", b"\x91", b"\x81", b",", b"%", b'"', b"9", b" "):
        data = byte * size
        for decoder in OF_BYTES:
            try:
                decoder(data)
            except REFUSED:
                continue
        for reader in OF_TEXT:
            try:
                reader(data.decode(errors="replace"))
            except REFUSED:
                continue
