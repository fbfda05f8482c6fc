"""Triggers by their text: made by plugins, each only once while it is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.errors import PluginError, SettingsError
from eventmq.policies import Timing
from eventmq.registry.names import TRIGGER

if TYPE_CHECKING:
    from eventmq.interfaces import Trigger
    from eventmq.registry.manager import PluginManager

__all__ = ["Triggers", "make_trigger"]

#: Triggers that are remembered; then it forgets them all.
_REMEMBERED = 10_000


def make_trigger(plugins: PluginManager, text: str) -> Trigger:
    """Return the trigger of a text such as ``every:{"seconds":30.0}``.

    Raises:
        SettingsError: There is no such trigger, or its options are not allowed.
    """
    timing = Timing.parse(text)
    try:
        return plugins.make(TRIGGER, timing.name, options=timing.options)
    except PluginError as error:
        raise SettingsError(str(error)) from error


class Triggers:
    """Makes triggers for a scheduler; many schedules share few of them.

    Args:
        plugins: Of the app.
    """

    def __init__(self, plugins: PluginManager) -> None:
        self._plugins = plugins
        self._made: dict[str, Trigger] = {}

    def __call__(self, text: str) -> Trigger:
        """Return the trigger of a text; raises `SettingsError`."""
        found = self._made.get(text)
        if found is None:
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            found = self._made[text] = make_trigger(self._plugins, text)
        return found
