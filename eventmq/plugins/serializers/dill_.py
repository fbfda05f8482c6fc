"""Serializer ``dill``: signed data with almost any Python object, including functions and classes.

**Warning**: decoding runs code that the data names. So every body is signed with a key that only
your own programs have, data with a wrong signature is never decoded, and both sides must name
``dill`` in ``accept_content``. Anyone who has the key can run code in your workers and clients.

The signature is HMAC-SHA256 over id, content type, task, queue, time of creation, expiry and body,
so a body cannot be moved to another job. The signature of a result is over id, content type, time
and body, the values that a client that asks for the result knows. To change the key, put the new
one at the beginning of ``keys``: the first key signs, all keys verify. Remove the old key after
``signature_max_age``.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.errors import PluginError, SerializationError, SignatureError
from eventmq.plugins.serializers.extended import children
from eventmq.sdk import hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.clock import Clock
    from eventmq.sdk import Envelope, Factory, PluginContext, Serializer

__all__ = ["Dill", "eventmq_serializers"]

#: Default and upper bound of ``signature_max_age``, in seconds. A broker forgets the ids of ended
#: jobs after its dedupe window (a day by default); after that, a body could be replayed.
MAX_AGE = 86400.0

#: Seconds by which the clock of the signer may be ahead. Data signed further in the future is
#: refused, since it would be accepted for longer than ``signature_max_age``.
SKEW = 300.0

#: Minimum length of a key in characters: 128 bits as hex digits.
MIN_KEY_LENGTH = 32

#: Maximum depth of containers in which a value that cannot be encoded is searched.
MAX_DEPTH = 32

_HOW = (
    'make a key with python -c "import secrets; print(secrets.token_hex(32))" and set it on every '
    'side: [eventmq.plugins.dill] keys = ["..."], or keys_file = "PATH" with one key per line'
)


class Dill:
    """A `Serializer` that signs and verifies.

    Args:
        library: The module dill.
        clock: Reads time.
        keys: Keys; the first signs, all verify.
        max_age: Seconds after which a signature is refused.
    """

    def __init__(self, library: Any, clock: Clock, keys: Sequence[str], max_age: float) -> None:
        self._dumps = library.dumps
        self._loads = library.loads
        self._now = clock.now
        self._keys = [key.encode() for key in keys]
        self._max_age = max_age

    def encode(self, value: object, envelope: Envelope) -> tuple[bytes, str]:
        """Encode and sign a value."""
        try:
            data = self._dumps(value)
        except Exception as error:  # pickling runs any code of the value's class
            kind, path = self._find_unencodable(value)
            raise SerializationError(
                f"dill cannot encode the {kind} at {path}: {type(error).__name__}: {error}"
            ) from error
        return data, _sign(self._keys[0], envelope, data)

    def _find_unencodable(self, value: object) -> tuple[str, str]:
        """Return type and path of the innermost value that cannot be encoded by itself."""
        path = "value"
        for _ in range(MAX_DEPTH):
            inner = next((c for c in children(value, path) if self._fails(c[1])), None)
            if inner is None:
                break
            path, value = inner
        return type(value).__name__, path

    def _fails(self, value: object) -> bool:
        try:
            self._dumps(value)
        except Exception:  # noqa: BLE001 - as in encode
            return True
        return False

    def decode(self, data: bytes, envelope: Envelope) -> Any:
        """Verify the signature and decode.

        Raises:
            SignatureError: The signature is missing, wrong, too old or from the future; nothing was
                decoded.
        """
        self._verify(data, envelope)
        try:
            return self._loads(data)
        except Exception as error:  # unpickling runs any code of the value's class
            raise SerializationError(
                f"these {len(data)} bytes cannot be decoded as dill: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _verify(self, data: bytes, envelope: Envelope) -> None:
        job = f"job {envelope.job_id!r}"
        if not envelope.signature:
            raise SignatureError(f"{job} has dill content without a signature")
        signature = envelope.signature.encode(errors="replace")
        # Sign with all keys, also after a match, so that the time does not depend on the key.
        signed = [_sign(key, envelope, data).encode() for key in self._keys]
        if not any(hmac.compare_digest(signature, expected) for expected in signed):
            raise SignatureError(f"{job}: the signature was made with another key or content")
        age = self._now() - envelope.created
        if not age <= self._max_age:
            raise SignatureError(
                f"{job}: the signature is {age:.0f} s old, the limit is {self._max_age:.0f} s"
            )
        if age < -SKEW:
            raise SignatureError(
                f"{job}: the signature was made {-age:.0f} s ahead of this clock; set the clocks"
            )


def _sign(key: bytes, envelope: Envelope, data: bytes) -> str:
    """Return the signature as hex digits; each part is preceded by its length."""
    parts = [
        envelope.job_id.encode(),
        envelope.content_type.encode(),
        envelope.task.encode(),
        envelope.queue.encode(),
        repr(float(envelope.created)).encode(),
        repr(float(envelope.expires)).encode(),
        data,
    ]
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the serializer.

    Attributes:
        keys: Keys; the first signs, all verify.
        keys_file: Path of a file with more keys, one per line.
        signature_max_age: Seconds after which a signature is refused.
    """

    keys: tuple[str, ...] = ()
    keys_file: str = ""
    signature_max_age: float = option(MAX_AGE, gt=0, le=MAX_AGE)


def _read_keys(options: Options) -> list[str]:
    keys = list(options.keys)
    if options.keys_file:
        try:
            keys += Path(options.keys_file).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise PluginError(f"keys_file cannot be read: {error}") from error
    if not keys:
        raise PluginError(f"there is no key to sign with; {_HOW}")
    if min(map(len, keys)) < MIN_KEY_LENGTH:
        raise PluginError(f"a key has less than {MIN_KEY_LENGTH} characters; {_HOW}")
    return keys


def make_serializer(context: PluginContext) -> Serializer:
    """Return a serializer; raises `PluginError` for a wrong option, or without a key."""
    options = read_options(context, Options)
    keys = _read_keys(options)
    import dill

    return Dill(dill, context.clock, keys, options.signature_max_age)


@hookimpl
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide ``dill``."""
    return {"dill": make_serializer}
