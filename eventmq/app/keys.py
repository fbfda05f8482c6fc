"""The keys by which clients, workers and the scheduler reach a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import SettingsError

if TYPE_CHECKING:
    from eventmq.settings import Settings
    from eventmq.wire.curve import ClientKeys

__all__ = ["keys_of"]


def keys_of(settings: Settings) -> ClientKeys | None:
    """Return the keys to reach the broker with, None where the settings name none.

    Raises:
        SettingsError: Only one of the two settings is there.
        KeyFileError: A file is missing or malformed, or others can read the secret one.
    """
    if not settings.key_file and not settings.broker_key_file:
        return None
    if not settings.key_file or not settings.broker_key_file:
        names = ("key_file", "broker_key_file")
        named, other = names if settings.key_file else reversed(names)
        msg = f"setting {named!r} from {settings.source(named)} goes with {other!r}: set both, "
        raise SettingsError(msg + "or none where the broker has no keys")
    from eventmq.wire.curve import client_keys

    return client_keys(settings.broker_key_file, settings.key_file)
