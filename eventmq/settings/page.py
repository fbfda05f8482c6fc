"""Settings shown: as rows for ``eventmq settings`` and as the reference page."""

from __future__ import annotations

import re
from pathlib import Path

from eventmq.settings.record import FIELDS, Settings
from eventmq.settings.values import hide_passwords, show

__all__ = ["describe", "document", "readers"]

_PAGE = """\
Settings
========

.. Made by ``eventmq.settings.document()``; change the code, not this page.

Sources, later ones win: the defaults; ``[tool.eventmq]`` of ``pyproject.toml`` in the working
directory; the top-level keys of ``eventmq.toml`` there; environment variables; arguments of
``EventMQ(...)`` and options of the command line.

An unknown key in a file or an argument is an error. So is a name that a setting had before, in a
variable too; the message tells the new name. Any other unknown ``EVENTMQ_*`` variable is noted in
the debug log, and warned of where it is within two letters of a known one; ``EVENTMQ_TEST_*`` is
ignored. Lists are comma-separated in environment variables. Options of a plugin stand in
``[eventmq.plugins.NAME]`` of ``eventmq.toml`` or ``[tool.eventmq.plugins.NAME]`` of
``pyproject.toml``; under a misspelt name they are an error. ``eventmq settings`` shows each value
with its source.

"Read by" says which process a setting matters to: the *client* is whatever submits jobs or asks for
results, a task that does so included; *beat* is the scheduler. Set elsewhere, it has no effect.

.. list-table::
   :header-rows: 1
   :widths: 18 12 8 14 10 38

   * - Name, environment variable
     - Type
     - Unit
     - Default
     - Read by
     - Meaning; what is allowed
"""

#: Process -> where its settings are read, below the package.
_READERS = {
    "client": ("app/app.py", "app/wiring.py"),
    "worker": ("app/__init__.py", "app/worker.py", "cli/worker.py"),
    "broker": ("app/broker.py",),
    "beat": ("app/*beat*.py", "app/*schedul*.py", "cli/beat.py"),
}

#: What the program itself reads, whatever it runs.
_EVERYWHERE = frozenset({"disabled_plugins", "load_plugins", "log_level"})

#: How these files name a setting; those of ports stand in a table.
_NAMED = re.compile(r'\bsettings\.(\w+)|": "(\w*bind)"')

#: What reads settings for its caller.
_BY_CALL = {
    "app.load_tasks()": {"imports"},
    ".middleware()": {"middleware"},
    "keys_of(": {"key_file", "broker_key_file"},
    "._app.client.": {"key_file", "broker_key_file"},
}


def describe(settings: Settings) -> list[dict[str, str]]:
    """Return one row per setting: name, value, source, type, unit, default, env."""
    return [
        {
            "name": name,
            "value": hide_passwords(show(getattr(settings, name))),
            "source": settings.source(name),
            "type": setting.type_name,
            "unit": setting.unit,
            "default": show(setting.default),
            "env": f"EVENTMQ_{name.upper()}",
        }
        for name, setting in FIELDS.items()
    ]


def readers() -> dict[str, list[str]]:
    """Return which processes read a setting, found in the code: name -> processes."""
    package = Path(__file__).parents[1]
    found: dict[str, list[str]] = {name: [] for name in FIELDS}
    for process, patterns in _READERS.items():
        texts = (
            path.read_text(encoding="utf-8")
            for pattern in patterns
            for path in sorted(package.glob(pattern))
        )
        named = {name for text in texts for name in _named(text)}
        for name in named & FIELDS.keys():
            found[name].append(process)
    return found | {name: ["all"] for name in _EVERYWHERE}


def _named(text: str) -> set[str]:
    """Return what may be settings in the text of a module."""
    found = {name for match in _NAMED.findall(text) for name in match}
    return found.union(*(names for call, names in _BY_CALL.items() if call in text))


def document() -> str:
    """Return the text of ``docs/reference/settings.rst``."""
    rows = []
    read_by = readers()
    for row in describe(Settings()):
        setting = FIELDS[row["name"]]
        doc = setting.doc.replace("`", "``")
        cells = [f"``{row['name']}``, ``{row['env']}``", f"``{row['type']}``", row["unit"]]
        cells += [f"``{row['default']}``" if row["default"] else "empty"]
        cells += [", ".join(read_by[row["name"]]), f"{doc} Allowed: {setting.allowed}."]
        rows.append("   * - " + "\n     - ".join(cells).replace("- \n", "-\n") + "\n")
    return _PAGE + "".join(rows)
