"""Where settings come from: a file, the environment, arguments."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq import hints
from eventmq.errors import SettingsError, did_you_mean
from eventmq.settings.record import FIELDS, RENAMED, Settings, hide_passwords

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["PREFIX", "load_settings", "misspelt_variables"]

log = logging.getLogger(__name__)

#: Environment variables of ours begin with it; those of tests are nobody's business here.
PREFIX = "EVENTMQ_"
_TEST_PREFIX = "EVENTMQ_TEST_"

#: Arguments of `EventMQ` that are no settings -> what to write.
_ARGUMENTS = {
    "task_defaults": "it is an argument of the app: "
    'EventMQ("shop", task_defaults={"keep_logs": True})'
}


def _read(name: str, value: object, source: str) -> object:
    """Return a checked value of the field's type.

    Raises:
        SettingsError: It cannot be one, with everything that is needed to put it right.
    """
    try:
        return FIELDS[name].read(value)
    except ValueError as error:
        raise SettingsError(
            f"setting {name!r} has the value {hide_passwords(repr(value))} from {source}; "
            f"allowed is: {error}"
        ) from None


def _known(name: str, source: str) -> None:
    """Raise `SettingsError` with the new or the nearest name if there is no such setting."""
    if name in FIELDS:
        return
    if name in RENAMED:
        new = RENAMED[name]
        raise SettingsError(
            f"unknown setting {name!r} from {source}: it is called {new!r} now"
            + (f"; set {PREFIX}{new.upper()} instead" if source.startswith(PREFIX) else "")
        )
    hint = _ARGUMENTS.get(name) or hints.SETTINGS.get(name) or did_you_mean(name, FIELDS)
    raise SettingsError(f"unknown setting {name!r} from {source}; {hint}")


def _load_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # imported here: 5 ms, only where a file exists
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path.name} cannot be read: {error}") from error


def _table(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{what} must be a table")
    return dict(value)


def _files(directory: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Give the name and the table of each settings file of a directory, the stronger last."""
    project = directory / "pyproject.toml"
    if project.is_file():
        tool = _table(_load_toml(project).get("tool", {}), "[tool] of pyproject.toml")
        yield project.name, _table(tool.get("eventmq", {}), "[tool.eventmq] of pyproject.toml")
    own = directory / "eventmq.toml"
    if own.is_file():
        data = _load_toml(own)
        inner = _table(data.pop("eventmq", {}), "[eventmq] of eventmq.toml")
        for name in inner.keys() - {"plugins"}:
            raise SettingsError(
                f"{name!r} stands in the table [eventmq] of eventmq.toml"
                "; settings stand there at the top, outside any table"
            )
        yield own.name, inner | data


def _distance(a: str, b: str) -> int:
    """Return how many letters must change, come or go to make ``b`` of ``a``."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def _ours(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variable -> name that a setting would have, of those with the prefix."""
    return {
        variable: variable.removeprefix(PREFIX).lower()
        for variable in environ
        if variable.startswith(PREFIX) and not variable.startswith(_TEST_PREFIX)
    }


def _is_setting(variable: str, name: str) -> bool:
    """Return whether a variable is that of a setting, under its name or the one it had before."""
    return (name in FIELDS or name in RENAMED) and variable == variable.upper()


def _misspelt(variable: str, name: str) -> str:
    """Return a sentence if the variable is within two letters of a known one, else ""."""
    near = min(FIELDS, key=lambda known: _distance(known, name))
    if _distance(near, name) > 2:  # noqa: PLR2004 - two letters, as documented
        return ""
    return f"environment variable {variable} is not known; {PREFIX}{near.upper()} is"


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that is within two letters of a known one."""
    others = {v: name for v, name in _ours(environ).items() if not _is_setting(v, name)}
    return [sentence for pair in others.items() if (sentence := _misspelt(*pair))]


def _environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return name -> (text, variable); tell of variables that are none of ours."""
    found = {}
    for variable, name in _ours(environ).items():
        if _is_setting(variable, name):
            found[name] = (environ[variable], variable)
        elif sentence := _misspelt(variable, name):
            log.warning("%s", sentence)
        else:
            log.debug("environment variable %s is not a setting", variable)
    return found


def _merge_options(
    tables: Iterable[tuple[str, object]],
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return plugin -> options, and ``plugins.PLUGIN.OPTION`` -> source."""
    merged: dict[str, dict[str, Any]] = {}
    sources = {}
    for source, options in tables:
        for plugin, values in _table(options, f"plugins from {source}").items():
            table = _table(values, f"the options of plugin {plugin!r} from {source}")
            merged.setdefault(plugin, {}).update(table)
            sources.update({f"plugins.{plugin}.{name}": source for name in table})
    return merged, sources


def _check_together(settings: Settings) -> None:
    if settings.serializer not in settings.accept_content:
        raise SettingsError(
            f"serializer {settings.serializer!r} from {settings.source('serializer')} is not in "
            f"accept_content ({', '.join(settings.accept_content)}); add it there"
        )
    if settings.heartbeat_timeout <= settings.heartbeat_interval:
        raise SettingsError(
            f"heartbeat_timeout ({settings.heartbeat_timeout:g} s) must be longer than "
            f"heartbeat_interval ({settings.heartbeat_interval:g} s)"
        )
    brokers, files = len(settings.broker), len(settings.broker_key_file)
    if files > 1 and files != brokers:
        raise SettingsError(
            f"broker_key_file from {settings.source('broker_key_file')} names {files} files for "
            f"{brokers} {'address' if brokers == 1 else 'addresses'} in broker; name one file for "
            "all, or one for each address in the same order"
        )


def load_settings(
    arguments: Mapping[str, Any],
    *,
    directory: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read the settings from all sources.

    Args:
        arguments: By name; None: not passed. ``plugin_options`` maps plugins to options.
        directory: Where the file is looked for, the working directory if None.
        environ: Environment variables, those of the process if None.

    Raises:
        SettingsError: A key is unknown or a value not allowed.
    """
    arguments = {name: value for name, value in arguments.items() if value is not None}
    tables = [*_files(Path(directory or ".")), ("argument", arguments)]
    options, option_sources = _merge_options(
        (source, table.pop("plugin_options" if table is arguments else "plugins", {}))
        for source, table in tables
    )
    values_by_name: dict[str, tuple[object, str]] = {}
    for source, table in tables[:-1]:
        values_by_name |= {name: (value, source) for name, value in table.items()}
    values_by_name |= _environment(os.environ if environ is None else environ)
    values_by_name |= {name: (value, "argument") for name, value in arguments.items()}
    for name, (_, source) in values_by_name.items():
        _known(name, source)
    values: dict[str, Any] = {name: _read(name, *pair) for name, pair in values_by_name.items()}
    sources = {name: source for name, (_, source) in values_by_name.items()} | option_sources
    settings = Settings(**values, plugin_options=options, sources=sources)
    _check_together(settings)
    return settings
