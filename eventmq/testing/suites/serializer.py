"""Conformance suite for serializers."""

# ruff: noqa: S101 - suites are methods that assert

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from eventmq.errors import ContentError, SerializationError, SignatureError
from eventmq.interfaces import Envelope

if TYPE_CHECKING:
    from eventmq.interfaces import Serializer

__all__ = ["SerializerSuite"]

_JSON_DATA: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    1.5,
    -0.0,
    1e300,
    "",
    "text",
    "äöü 漢字 \U0001f680 \x00 \n",
    [],
    {},
    [1, "two", [3.0, None, [True]]],
    {"a": {"b": [1, 2, {"c": None}]}},
    list(range(1000)),
    {str(i): i for i in range(1000)},
]


class SerializerSuite:
    """Subclass it and return your serializer from `make`.

    ``values`` are further values that must come back equal, with the same type.
    """

    values: tuple[Any, ...] = ()

    def make(self) -> Serializer:
        """Return the serializer; called once per test."""
        raise NotImplementedError("define make() in your subclass: it returns your serializer")

    def envelope(self) -> Envelope:
        """Return an envelope as a client makes it; ``created`` must suit your clock."""
        return Envelope("0190a0b0c0d070008000000000000000", "test", "tasks.add", "default")

    def unencodable(self) -> object:
        """Return a value that cannot be encoded."""
        return (item for item in "")

    def round_trip(self, value: object) -> Any:
        """Encode and decode a value, by two objects as in two processes."""
        envelope = self.envelope()
        data, signature = self.make().encode(value, envelope)
        return self.make().decode(data, replace(envelope, signature=signature))

    def test_encode_returns_bytes_and_a_signature(self) -> None:
        """The signature is text, empty where there is none."""
        data, signature = self.make().encode([[1], {}], self.envelope())
        assert type(data) is bytes
        assert type(signature) is str

    @pytest.mark.parametrize("value", _JSON_DATA, ids=repr)
    def test_json_data_comes_back_equal(self, value: object) -> None:
        """Every serializer supports the data types of JSON, and keeps the types."""
        decoded = self.round_trip(value)
        assert decoded == value
        assert type(decoded) is type(value)

    def test_further_values_come_back_equal(self) -> None:
        """Those of ``values``."""
        for value in self.values:
            decoded = self.round_trip(value)
            assert decoded == value
            assert type(decoded) is type(value)

    def test_a_call_comes_back_as_arguments_and_keywords(self) -> None:
        """A job is ``[args, kwargs]``; args may come back as another sequence."""
        args, kwargs = self.round_trip([("a", 1), {"subject": "hi"}])
        assert list(args) == ["a", 1]
        assert kwargs == {"subject": "hi"}

    def test_a_value_that_cannot_be_encoded_is_named_by_its_type(self) -> None:
        """The user can then see which argument is wrong."""
        value = self.unencodable()
        with pytest.raises(SerializationError) as caught:
            self.make().encode([[1, value], {}], self.envelope())
        assert type(value).__name__ in str(caught.value)

    def test_a_value_that_contains_itself_is_refused_or_comes_back(self) -> None:
        """It causes neither an endless loop nor another exception than `SerializationError`."""
        value: list[Any] = [1]
        value.append(value)
        try:
            decoded = self.round_trip(value)
        except SerializationError:
            return
        assert decoded[1] is decoded

    @pytest.mark.parametrize("data", [b"", b"\xff", b"\x00" * 64, b"[" * 5000], ids=repr)
    def test_arbitrary_bytes_raise_no_other_error_than_a_content_error(self, data: bytes) -> None:
        """They may also be decoded by chance."""
        with contextlib.suppress(ContentError):
            self.make().decode(data, self.envelope())

    def test_truncated_bytes_raise_a_content_error(self) -> None:
        """The first half of a message is not decoded."""
        envelope = self.envelope()
        data, signature = self.make().encode([["text"] * 9, {"a": 1}], envelope)
        with pytest.raises(ContentError):
            self.make().decode(data[: len(data) // 2], replace(envelope, signature=signature))

    def test_a_signature_covers_the_body_and_the_envelope(self) -> None:
        """No field that it covers can be changed without a `SignatureError`."""
        envelope = self.envelope()
        data, signature = self.make().encode([[1], {}], envelope)
        if not signature:
            pytest.skip("this serializer does not sign")
        signed = replace(envelope, signature=signature)
        changed = [
            replace(signed, job_id="another"),
            replace(signed, content_type="another"),
            replace(signed, task="another"),
            replace(signed, queue="another"),
            replace(signed, created=signed.created - 1.0),
            replace(signed, expires=signed.expires + 1.0),
            replace(signed, signature=""),
            replace(signed, signature=signature[:-1]),
            replace(signed, signature="0" * len(signature)),
            replace(signed, signature="ä"),
        ]
        for wrong in changed:
            with pytest.raises(SignatureError):
                self.make().decode(data, wrong)
        with pytest.raises(SignatureError):
            self.make().decode(data + b"\x00", signed)
        assert list(self.make().decode(data, signed)[0]) == [1]

    def test_threads_can_share_it(self) -> None:
        """One object serves all threads of a process."""
        serializer, envelope = self.make(), self.envelope()

        def work(number: int) -> bool:
            value = [[number, "x" * number], {}]
            data, signature = serializer.encode(value, envelope)
            decoded = serializer.decode(data, replace(envelope, signature=signature))
            return bool(list(decoded[0]) == value[0])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(200)))
