"""Bodies that carry many jobs or outcomes, byte by byte."""

from __future__ import annotations

import msgpack
import pytest

from eventmq.errors import ProtocolError
from eventmq.wire.batches import (
    ChunkEntry,
    LoggedRow,
    OutcomeRow,
    decode_batch,
    decode_chunk,
    decode_exceptions,
    decode_outcomes,
    encode_batch,
    encode_chunk,
    encode_exceptions,
    encode_outcomes,
    is_text,
    pack,
    parse_chunk_number,
    read_outcomes,
    unpack,
)


def refused(function: object, *arguments: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        function(*arguments)  # type: ignore[operator]
    assert caught.value.code == "bad-body"
    return str(caught.value)


# Batch


def test_a_batch_is_templates_and_jobs() -> None:
    body = encode_batch([("q", "task:t")], [("a", 0, b"x"), ("b", 0, b"")])
    assert msgpack.unpackb(body) == [[["q", "task:t"]], [["a", 0, b"x"], ["b", 0, b""]]]
    templates, jobs = decode_batch(body, 2)
    assert [tuple(t) for t in templates] == [("q", "task:t")]
    assert [tuple(j) for j in jobs] == [("a", 0, b"x"), ("b", 0, b"")]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_batch_of_another_length_than_its_header_says_is_refused(count: int) -> None:
    body = encode_batch([("q", "")], [("a", 0, b""), ("b", 0, b"")])
    assert refused(decode_batch, body, count) == (
        f"a batch of {count} is [templates, jobs] with {count} jobs, no more templates"
    )


@pytest.mark.parametrize(
    "value",
    [
        [], {}, None, 7, "xy", [[], []], [[["q", ""]], {}], [{}, [["a", 0, b""]]],
        [[["q", ""], ["r", ""]], [["a", 0, b""]]],
    ],
)  # fmt: skip
def test_what_is_no_batch_is_refused(value: object) -> None:
    assert refused(decode_batch, pack(value), 1) == (
        "a batch of 1 is [templates, jobs] with 1 jobs, no more templates"
    )


BAD_JOBS = (
    "a batch has templates [queue, headers] and jobs [id, template, bytes]; no text has a NUL "
    "character"
)


@pytest.mark.parametrize(
    "template",
    [
        ["q"], ["q", 1], [b"q", ""], "qh", {"q": ""}, ["q", "", ""], ["q\0", ""], ["q", "task:\0"],
        ["q", "task:%00"],
    ],
)  # fmt: skip
def test_a_template_is_a_queue_and_headers(template: object) -> None:
    assert refused(decode_batch, pack([[template], [["a", 0, b""]]]), 1) == (BAD_JOBS)


@pytest.mark.parametrize(
    "job",
    [
        ["a", 0], ["a", 0, b"", b""], ["", 0, b""], ["a", 1, b""], ["a", -1, b""], ["a", 0, "x"],
        ["a", True, b""], [b"a", 0, b""], [7, 0, b""], 7, None, {"a": 0}, ["a", 0.0, b""],
        ["a\0", 0, b""],
    ],
)  # fmt: skip
def test_a_job_of_a_batch_is_id_template_and_bytes(job: object) -> None:
    assert refused(decode_batch, pack([[["q", ""]], [job]]), 1) == (BAD_JOBS)


# Chunk

ROWS = [
    ("a", 1, 1, "task:t", 5.0, 0.0, b"one"),
    ("", 2, 0, "", 0.0, 0.0, b""),
    ("b", 3, 2, "task:t", 0.0, 9.0, b"three"),
]


def test_a_chunk_is_an_index_and_payloads() -> None:
    body = encode_chunk("q", ROWS)
    size = int.from_bytes(body[:4], "big")
    assert msgpack.unpackb(body[4 : 4 + size]) == [
        "q",
        ["task:t", ""],
        [
            ["a", 1, 1, 0, 5.0, 0.0, 0, 3],
            ["", 2, 0, 1, 0.0, 0.0, 3, 0],
            ["b", 3, 2, 0, 0.0, 9.0, 3, 5],
        ],
    ]
    assert body[4 + size :] == b"onethree"
    index = decode_chunk(body)
    assert (index.queue, index.templates) == ("q", ["task:t", ""])
    assert index.entries[2] == ChunkEntry("b", 3, 2, 0, 0.0, 9.0, 3, 5)
    assert [index.payload(body, e) for e in index.entries] == [b"one", b"", b"three"]


def chunk(value: object, payload: bytes = b"") -> bytes:
    index = pack(value)
    return len(index).to_bytes(4, "big") + index + payload


ENTRY = ["a", 1, 1, 0, 0.0, 0.0, 0, 2]


def changed(position: int, value: object) -> list[object]:
    return [*ENTRY[:position], value, *ENTRY[position + 1 :]]


def test_the_entry_that_is_changed_below_is_a_good_one() -> None:
    assert decode_chunk(chunk(["q", [""], [ENTRY]], b"xy")).entries == [ChunkEntry(*ENTRY)]


@pytest.mark.parametrize(
    "value",
    [
        None, [], ["q", []], [7, [""], [ENTRY]], ["q", [b""], [ENTRY]], ["q", 7, [ENTRY]],
        ["q", [""], 7], ["q", [""], [ENTRY[:7]]], ["q", [""], [[*ENTRY, 0]]], ["q", [""], [None]],
        *(
            ["q", [""], [changed(position, value)]]
            for position, value in [
                (0, 7), (1, 1.0), (1, True), (2, None), (3, 1), (3, -1), (4, 5), (5, "0"), (6, 1),
                (7, -2), (7, None),
            ]
        ),
    ],
)  # fmt: skip
def test_what_is_no_index_is_refused(value: object) -> None:
    assert refused(decode_chunk, chunk(value, b"xy")) == "the index of the chunk is malformed"


@pytest.mark.parametrize(
    "body",
    [chunk(["q", [""], [ENTRY]], b"x"), chunk(["q", [""], [ENTRY]], b"xyz"), chunk(["q", [], []])],
)
def test_a_chunk_is_as_long_as_its_index_says(body: bytes) -> None:
    assert refused(decode_chunk, body) == "the chunk is not as long as its index says"


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\xc1", b"\xff\xff\xff\xff\x90"]
)
def test_an_index_that_is_no_messagepack_is_refused(body: bytes) -> None:
    assert "the index of the chunk" in refused(decode_chunk, body)


@pytest.mark.parametrize(
    "outcome", ["", "chunk", "chunk:", "chunk:-1", "chunk:1.0", "chunk: 1", "part", "chunk:\u00b2",
                "chunk:" + "9" * 16],
)  # fmt: skip
def test_an_outcome_frame_names_a_chunk(outcome: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_chunk_number(outcome)
    assert (caught.value.code, str(caught.value)) == (
        "bad-outcome",
        f"OUTCOME is {outcome[:80]!r}; a REPLY to a chunk says chunk:NUMBER",
    )


def test_a_chunk_number_is_read() -> None:
    assert parse_chunk_number("chunk:17") == 17


# Outcomes

OUTCOME = [0, 0, 1.5, 0.25, "json", b"4", 0.0]


def test_outcomes_are_rows() -> None:
    rows = [OutcomeRow(0, 0, 1.5, 0.25, "json", b"4"), OutcomeRow(1, 2, 0.0, 0.0, "", b"", 5.0)]
    body = encode_outcomes(rows)
    assert msgpack.unpackb(body) == [OUTCOME, [1, 2, 0.0, 0.0, "", b"", 5.0]]
    assert [OutcomeRow(*row) for row in decode_outcomes(body)] == rows
    assert list(decode_outcomes(encode_outcomes([]))) == []


def test_a_log_goes_behind_its_outcome() -> None:
    """Each outcome may have one; `decode_outcomes` returns only the outcomes."""
    rows = [OutcomeRow(n, 0, 1.5, 0.25, "json", b"4") for n in range(3)]
    logged = [rows[0], LoggedRow.of(rows[1], b"said\n"), LoggedRow.of(rows[2], b"")]
    assert [OutcomeRow, LoggedRow, OutcomeRow] == list(map(type, logged))
    body = encode_outcomes(logged)
    assert [7, 8, 7] == list(map(len, msgpack.unpackb(body)))
    decoded, logs = read_outcomes(body)
    assert [OutcomeRow(*row) for row in decoded] == rows
    assert logs == {1: b"said\n"}
    assert [OutcomeRow(*row) for row in decode_outcomes(body)] == rows
    assert read_outcomes(encode_outcomes(rows))[1] == {}


BAD_OUTCOMES = [
    OUTCOME[:6], [*OUTCOME, 0], [*OUTCOME, "log"], [*OUTCOME, b"log", b""], None, 7,
    ["0", *OUTCOME[1:], b"log"],
    *(
        [*OUTCOME[:place], value, *OUTCOME[place + 1 :]]
        for place, value in [
            (0, "0"), (0, True), (1, 0.0), (2, 1), (2, -1.0), (2, float("nan")), (2, 1e12),
            (3, -0.5), (3, float("inf")), (4, b"json"), (5, "4"), (5, None), (6, 1),
            (6, float("nan")), (6, -1.0),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("outcome", BAD_OUTCOMES, ids=repr)
def test_an_outcome_that_is_none_is_refused(outcome: object) -> None:
    assert refused(decode_outcomes, pack([outcome])) == (
        "an outcome is [position, kind, started, ran, content type, payload, countdown]"
    )


# Exceptions


def test_exceptions_are_by_index() -> None:
    exceptions = {1: ("too-large", "why"), 7: ("queue-full", "full")}
    data = encode_exceptions(exceptions)
    assert msgpack.unpackb(data, strict_map_key=False) == {
        1: ["too-large", "why"],
        7: ["queue-full", "full"],
    }
    assert decode_exceptions(data) == exceptions


@pytest.mark.parametrize("value", [[], 7, None, {1: "x"}, {1: ["a"]}, {1: 7}, {"x": ["a", "b"]}])
def test_exceptions_that_are_none_are_refused(value: object) -> None:
    assert refused(decode_exceptions, pack(value)) == (
        "the exceptions of an ACK are a map of index to [code, text]"
    )


# MessagePack


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90\x90",
        b"\xdd\xff\xff\xff\xff",
        b"\x81\x90\x90",
        b"\x91" * 5000,
        b"\xa1\xff",
    ],
)
def test_what_is_no_messagepack_is_refused_by_its_name(data: bytes) -> None:
    """Also trailing bytes, text that is not UTF-8, and unlimited nesting."""
    assert refused(unpack, data, "the body") == "the body is not MessagePack"


def test_numbers_can_be_keys_of_maps() -> None:
    assert unpack(pack({1: "x"}), "") == {1: "x"}


def test_text_is_utf8() -> None:
    assert is_text("\u2603".encode())
    assert is_text(b"")
    assert not is_text(b"\xff")
