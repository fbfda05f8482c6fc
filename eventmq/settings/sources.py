"""Sources of settings: files, the environment, arguments."""

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

#: Prefix of EventMQ's environment variables.
PREFIX = "EVENTMQ_"
_TEST_PREFIX = "EVENTMQ_TEST_"

#: Arguments of `EventMQ` that are not settings -> what to write.
_ARGUMENTS = {
    "task_defaults": "it is an argument of the app: "
    'EventMQ("shop", task_defaults={"keep_logs": True})'
}


def _read(name: str, value: object, source: str) -> object:
    """Return a value converted to the field's type, and checked.

    Raises:
        SettingsError: It is not allowed; the message has the source and the allowed values.
    """
    try:
        return FIELDS[name].read(value)
    except ValueError as error:
        raise SettingsError(
            f"setting {name!r} has the value {hide_passwords(repr(value))} from {source}; "
            f"allowed is: {error}"
        ) from None


def _check_known(name: str, source: str) -> None:
    """Raise `SettingsError` with the new or the nearest name if the setting does not exist."""
    if name in FIELDS:
        return
    if name in RENAMED:
        current = RENAMED[name]
        raise SettingsError(
            f"unknown setting {name!r} from {source}: it is called {current!r} now"
            + (f"; set {PREFIX}{current.upper()} instead" if source.startswith(PREFIX) else "")
        )
    hint = _ARGUMENTS.get(name) or hints.SETTINGS.get(name) or did_you_mean(name, FIELDS)
    raise SettingsError(f"unknown setting {name!r} from {source}; {hint}")


def _load_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # imported here, as it takes 5 ms, only for a file
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path.name} cannot be read: {error}") from error


def _table(value: object, description: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{description} must be a table")
    return dict(value)


def _files(directory: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield the name and the table of each settings file of a directory, the strongest last."""
    project = directory / "pyproject.toml"
    if project.is_file():
        tool = _table(_load_toml(project).get("tool", {}), "[tool] of pyproject.toml")
        yield project.name, _table(tool.get("eventmq", {}), "[tool.eventmq] of pyproject.toml")
    eventmq_toml = directory / "eventmq.toml"
    if eventmq_toml.is_file():
        data = _load_toml(eventmq_toml)
        inner = _table(data.pop("eventmq", {}), "[eventmq] of eventmq.toml")
        for name in inner.keys() - {"plugins"}:
            raise SettingsError(
                f"{name!r} is in the table [eventmq] of eventmq.toml"
                "; settings belong at the top of that file, outside any table"
            )
        yield eventmq_toml.name, inner | data


def _distance(a: str, b: str) -> int:
    """Return the number of letters to change, add or remove between two names (edit distance)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def _eventmq_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variable -> name of the setting, for the variables with the prefix."""
    return {
        variable: variable.removeprefix(PREFIX).lower()
        for variable in environ
        if variable.startswith(PREFIX) and not variable.startswith(_TEST_PREFIX)
    }


def _is_setting(variable: str, name: str) -> bool:
    """Return whether a variable is that of a setting, under its present or former name."""
    return (name in FIELDS or name in RENAMED) and variable == variable.upper()


def _misspelt(variable: str, name: str) -> str:
    """Return a warning if the variable is within two letters of a known one, else ""."""
    near = min(FIELDS, key=lambda name_of_setting: _distance(name_of_setting, name))
    if _distance(near, name) > 2:  # noqa: PLR2004 - two letters, as documented
        return ""
    return f"environment variable {variable} is unknown; did you mean {PREFIX}{near.upper()}?"


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that is within two letters of a known one."""
    unknown = {
        v: name for v, name in _eventmq_variables(environ).items() if not _is_setting(v, name)
    }
    return [warning for pair in unknown.items() if (warning := _misspelt(*pair))]


def _environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return name -> (text, variable); log variables that are not settings."""
    values = {}
    for variable, name in _eventmq_variables(environ).items():
        if _is_setting(variable, name):
            values[name] = (environ[variable], variable)
        elif misspelling := _misspelt(variable, name):
            log.warning("%s", misspelling)
        else:
            log.debug("environment variable %s is not a setting", variable)
    return values


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
        arguments: Values by name; None counts as not passed. ``plugin_options`` maps plugins to
            options.
        directory: Directory of the files, the working directory if None.
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
        _check_known(name, source)
    values: dict[str, Any] = {name: _read(name, *pair) for name, pair in values_by_name.items()}
    sources = {name: source for name, (_, source) in values_by_name.items()} | option_sources
    settings = Settings(**values, plugin_options=options, sources=sources)
    _check_together(settings)
    return settings
