"""Settings shown: as rows for ``eventmq settings`` and as the reference page."""

from __future__ import annotations

from eventmq.settings.record import FIELDS, Settings
from eventmq.settings.values import hide_passwords, show

__all__ = ["describe", "document"]

_PAGE = """\
Settings
========

.. Made by ``eventmq.settings.document()``; change the code, not this page.

Sources, later ones win: the defaults; ``[tool.eventmq]`` of ``pyproject.toml`` in the working
directory; the top-level keys of ``eventmq.toml`` there; environment variables; arguments of
``EventMQ(...)`` and options of the command line.

An unknown key in a file or an argument is an error. An unknown ``EVENTMQ_*`` variable is noted in
the debug log, and warned of where it is within two letters of a known one; ``EVENTMQ_TEST_*`` is
ignored. Lists are comma-separated in environment variables. Options of a plugin stand in
``[eventmq.plugins.NAME]`` of ``eventmq.toml`` or ``[tool.eventmq.plugins.NAME]`` of
``pyproject.toml``. ``eventmq settings`` shows each value with its source.

.. list-table::
   :header-rows: 1
   :widths: 18 14 8 18 42

   * - Name, environment variable
     - Type
     - Unit
     - Default
     - Meaning; what is allowed
"""


def describe(settings: Settings) -> list[dict[str, str]]:
    """Return one row per setting: name, value, source, type, unit, default, env."""
    return [
        {
            "name": name,
            "value": hide_passwords(show(getattr(settings, name))),
            "source": settings.source(name),
            "type": str(setting.type),
            "unit": setting.metadata["unit"],
            "default": show(setting.default),
            "env": f"EVENTMQ_{name.upper()}",
        }
        for name, setting in FIELDS.items()
    ]


def document() -> str:
    """Return the text of ``docs/reference/settings.rst``."""
    rows = []
    for row in describe(Settings()):
        about = FIELDS[row["name"]].metadata
        doc = about["doc"].replace("`", "``")
        cells = [f"``{row['name']}``, ``{row['env']}``", f"``{row['type']}``", row["unit"]]
        cells += [f"``{row['default']}``" if row["default"] else "empty"]
        cells += [f"{doc} Allowed: {about['allowed']}."]
        rows.append("   * - " + "\n     - ".join(cells).replace("- \n", "-\n") + "\n")
    return _PAGE + "".join(rows)
