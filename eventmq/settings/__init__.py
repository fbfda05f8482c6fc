"""Settings: one frozen, validated record, read once from four sources.

Defaults are overridden by ``[tool.eventmq]`` of ``pyproject.toml``, these by ``eventmq.toml`` in
the same directory, these by ``EVENTMQ_*`` variables, and these by arguments. Every field declares
its unit, meaning and allowed values, from which the reference page and ``eventmq settings`` are
made.

`record` has the fields and their rules, `sources` reads, `page` shows.
"""

from __future__ import annotations

from eventmq.settings.page import describe, document
from eventmq.settings.record import Settings
from eventmq.settings.sources import PREFIX, load_settings, misspelt_variables

__all__ = ["PREFIX", "Settings", "describe", "document", "load_settings", "misspelt_variables"]
