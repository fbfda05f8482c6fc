"""Listing of the settings: as rows for ``eventmq settings`` and as the reference page."""

from __future__ import annotations

import re
from pathlib import Path

from eventmq.settings.record import FIELDS, SECRET, Settings, hide_passwords, show

__all__ = ["describe", "document", "readers"]

_PAGE = """\
Settings
========

.. Made by ``eventmq.settings.document()``; change the code, not this page.

.. code-block:: toml

   # eventmq.toml, in the working directory of the process
   broker = "tcp://10.0.0.1:47291"
   submit_timeout = 15.0

.. code-block:: console

   $ EVENTMQ_SUBMIT_TIMEOUT=15 eventmq settings

Sources, later ones win: the defaults; ``[tool.eventmq]`` of ``pyproject.toml`` in the working
directory; the top-level keys of ``eventmq.toml`` there; environment variables; arguments of
``EventMQ(...)`` and options of the command line.
An unknown key in a file or an argument is an error. So is a former name of a setting, also as a
variable; the message has the new name. Any other unknown ``EVENTMQ_*`` variable is written to the
debug log, or logged as a warning if it differs from a known one by at most two letters;
``EVENTMQ_TEST_*`` is ignored. Lists are comma-separated in environment variables. Options of a
plugin go into ``[eventmq.plugins.NAME]`` of ``eventmq.toml`` or ``[tool.eventmq.plugins.NAME]`` of
``pyproject.toml``; a misspelt name is an error. Environment variables cannot set them. Paths in
files are relative to the working directory of the process that reads them.

``eventmq settings`` shows each value of this page with its source, and the options of plugins that
are set, as ``plugins.NAME.OPTION``; in Python ``app.settings.plugin_options`` has them, as name ->
options. It hides passwords in URLs, and options whose name contains *key*, *pass*, *pwd*, *secret*
or *token*.

Settings are grouped by the process that reads them; in others they have no effect. The *client* is
any process that submits jobs or waits for results, including a worker whose tasks do; *beat* is the
scheduler.
"""

#: Process that reads a setting -> title of its section, in the order of the page.
_SECTIONS = {
    "": "Several processes",
    "client": "Clients",
    "worker": "Workers",
    "broker": "The broker",
    "beat": "Beats",
}

#: Process -> files of the package that read its settings.
_READERS = {
    "client": ("app/app.py", "app/wiring.py"),
    "worker": ("app/__init__.py", "app/worker.py", "cli/worker.py"),
    "broker": ("app/broker.py", "cli/broker.py"),
    "beat": ("app/*beat*.py", "app/*schedul*.py", "cli/beat.py"),
}

#: Settings that every command reads.
_EVERYWHERE = frozenset({
    "disabled_plugins", "load_plugins", "log_format", "log_handlers", "log_level",
})  # fmt: skip

#: Patterns of settings in these files; settings of ports are in a table.
_NAMED = re.compile(r'\bsettings\.(\w+)|": "(\w*bind)"')

#: Calls that read settings -> these settings.
_BY_CALL = {
    "app.load_tasks()": {"imports"},
    ".middleware()": {"middleware"},
    ".queue_of(": {"default_queue", "routes"},
    "keys_of(": {"key_file", "broker_key_file"},
    "._app.client.": {"key_file", "broker_key_file"},
}


def describe(settings: Settings) -> list[dict[str, str]]:
    """Return one row per setting, and per option of a plugin that is set.

    Columns are name, value, source, type, unit, default and env. Passwords are hidden, as is the
    value of an option whose name suggests a secret.
    """
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
    ] + [
        {
            "name": f"plugins.{plugin}.{name}",
            "value": "***" if SECRET.search(name) else hide_passwords(show(value)),
            "source": settings.source(f"plugins.{plugin}.{name}"),
            "type": type(value).__name__,
            "unit": "",
            "default": "",
            "env": "",
        }
        for plugin, options in sorted(settings.plugin_options.items())
        for name, value in sorted(options.items())
    ]


def readers() -> dict[str, list[str]]:
    """Return the processes that read each setting, according to the code."""
    package = Path(__file__).parents[1]
    processes: dict[str, list[str]] = {name: [] for name in FIELDS}
    for process, patterns in _READERS.items():
        texts = (
            path.read_text(encoding="utf-8")
            for pattern in patterns
            for path in sorted(package.glob(pattern))
        )
        named = {name for text in texts for name in _named(text)}
        for name in named & FIELDS.keys():
            processes[name].append(process)
    return processes | {name: ["all"] for name in _EVERYWHERE}


def _named(text: str) -> set[str]:
    """Return the possible names of settings in the text of a module."""
    matches = {name for match in _NAMED.findall(text) for name in match}
    return matches.union(*(names for call, names in _BY_CALL.items() if call in text))


def document() -> str:
    """Return the text of ``docs/reference/settings.rst``."""
    sections: dict[str, list[str]] = {title: [] for title in _SECTIONS.values()}
    processes = readers()
    for row in describe(Settings()):
        readers_of = processes[row["name"]]
        only = readers_of[0] if len(readers_of) == 1 else ""
        sections[_SECTIONS.get(only, _SECTIONS[""])].append(_definition(row, readers_of))
    return _PAGE + "".join(
        f"\n{title}\n{'-' * len(title)}\n{''.join(definitions)}"
        for title, definitions in sections.items()
        if definitions
    )


def _definition(row: dict[str, str], readers_of: list[str]) -> str:
    """Return the definition of one setting."""
    setting = FIELDS[row["name"]]
    default = f"``{row['default']}`` {row['unit']}".rstrip() if row["default"] else "empty"
    read_by = ""
    if len(readers_of) > 1 or readers_of == ["all"]:
        read_by = f" Read by {', '.join(readers_of).replace('all', 'every process')}."
    # An address of an example is no link.
    allowed = setting.allowed.replace("://", r"\://")
    return f"""
.. confval:: {row["name"]}

   {setting.doc.replace("`", "``")}

   Default {default}; variable ``{row["env"]}``; type ``{row["type"]}``.
   Allowed: {allowed}.{read_by}
"""
