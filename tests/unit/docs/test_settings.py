"""Settings in the pages are accepted as they are written: in files, variables and arguments."""

from __future__ import annotations

import ast
import re
import sys
from contextlib import suppress
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from eventmq import EventMQ
from eventmq.errors import BrokerUnavailable, PluginError
from eventmq.registry import names
from eventmq.registry.names import KINDS, RESULT_BACKEND
from eventmq.settings import load_settings
from eventmq.settings.record import FIELDS
from tests.support.page_files import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("docs/**/*.rst"), *ROOT.glob("*.rst"), *ROOT.glob("examples/**/*.rst"))
}

BLOCK = re.compile(
    r"^( *)\.\. code-block:: toml\n(?:\1 +:.*\n)*\n((?:(?:\1 {3,}.*)?\n)+)", re.MULTILINE
)

#: Variables of these pages that no setting has: the prefix, and those of deploy/supervisord.conf.
OTHERS = {"EVENTMQ_", "EVENTMQ_APP", "EVENTMQ_DATA"}


def found(find: Callable[[str], Iterator[Any]]) -> list[Any]:
    """Return what is found in the pages, each as a parameter that names its page."""
    return [
        pytest.param(each, id=f"{page}-{number}")
        for page, text in PAGES.items()
        for number, each in enumerate(find(text))
    ]


def blocks(text: str) -> Iterator[str]:
    """Yield the blocks that are files of settings, and settings that stand in a sentence."""
    for match in BLOCK.finditer(text):
        block = dedent(match[2])
        if not {"project", "build-system"} & tomllib.loads(block).keys():
            yield block
    for code in re.findall(r"``([^`]+?)``", text):
        name, equals, value = code.partition(" = ")
        if equals and name in FIELDS and value != "...":
            yield f"{name} = {value}\n"
        if code.startswith("[eventmq.plugins.") and "NAME" not in code:
            yield code.replace("] ", "]\n", 1)


def calls(text: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of ``EventMQ(...)``, as far as they are values."""
    for match in re.finditer(r"\bEventMQ\(", text):
        for end in (match.end() + each.end() for each in re.finditer(r"\)", text[match.end() :])):
            with suppress(SyntaxError):
                call = ast.parse(dedent(text[match.start() : end]), mode="eval").body
                break
        else:
            continue
        assert isinstance(call, ast.Call)
        values = {}
        for keyword in call.keywords:
            with suppress(ValueError):
                values[str(keyword.arg)] = ast.literal_eval(keyword.value)
        yield values


def variables(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield variables, with what they are set to where that is said."""
    for name, value in re.findall(r"\b(EVENTMQ_[A-Z_]*)(?:=([^\s`]+))?", text):
        if not name.startswith("EVENTMQ_TEST"):
            yield name, value or None


def make(app: EventMQ) -> None:
    """Make the plugins that the settings of an app choose, or have options for."""
    settings, plugins = app.settings, app.plugins
    for kind, chosen in (
        (names.SERIALIZER, settings.serializer),
        (names.ROUTING_STRATEGY, settings.routing_strategy),
        (names.QUEUE_ORDER, settings.queue_order),
        (names.SCHEDULE_STORE, settings.schedule_store),
    ):
        with suppress(BrokerUnavailable):  # its server is one of an example
            plugins.make(kind, chosen)
    for name in settings.plugin_options:
        kinds = [kind for kind in KINDS if name in plugins.names(kind)]
        refusals = []
        # What is chosen by a URL, or gets the path of the app from the worker, has that as well.
        chosen = settings.result_backend
        text = chosen if chosen.partition(":")[0] == name else name
        for kind in kinds:
            more = {"loader": "a:b", "arguments": {"path": "shop:app"}, "executor": None}
            try:
                plugins.make(kind, text, options=more if kind is names.WORKER_POOL else {})
            except PluginError as error:
                if "pip install" not in str(error):  # of an extra
                    refusals.append(error)
        # Plugins of several kinds may share a name, and with it the table of their options.
        assert not kinds or len(refusals) < len(kinds), refusals


@pytest.mark.parametrize("block", found(blocks))
def test_a_block_of_settings_is_accepted(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the reader of settings, and by the plugins that it names: built-in ones and examples."""
    monkeypatch.chdir(tmp_path)
    modules = []
    for project in ROOT.glob("examples/*/pyproject.toml"):
        monkeypatch.syspath_prepend(project.parent / "src")
        points = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"]
        modules += points["eventmq"].values()
    name = "pyproject.toml" if "[tool.eventmq" in block else "eventmq.toml"
    (tmp_path / name).write_text(block, encoding="utf-8")
    with EventMQ("page", plugins=modules) as app:
        assert set(app.settings.sources.values()) <= {name}
        make(app)
        backend = app.plugins.make(RESULT_BACKEND, app.settings.result_backend)
        if app.settings.result_backend.startswith("sqlite"):
            assert backend.get(backend.put("id", b"x", 60.0)) == b"x"
            assert list(tmp_path.rglob("*.sqlite")), "a path that any reader can write"
        backend.close()


@pytest.mark.parametrize("values", found(calls))
def test_the_arguments_of_an_app_are_accepted(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values.pop("plugins", None)
    EventMQ(**{name: value for name, value in values.items() if value != "tcp://..."}).close()


@pytest.mark.parametrize("variable", found(variables))
def test_a_variable_is_accepted(variable: tuple[str, str | None], tmp_path: Path) -> None:
    """It is that of a setting, and what it is set to is allowed."""
    name, value = variable
    if name in OTHERS:
        return
    assert name.removeprefix("EVENTMQ_").lower() in FIELDS
    if value is not None:
        settings = load_settings({}, directory=tmp_path, environ={name: value})
        assert settings.sources == {name.removeprefix("EVENTMQ_").lower(): name}


def test_all_kinds_of_places_are_found() -> None:
    """Else the tests above would pass without looking at anything."""
    assert len(found(blocks)) >= 10
    assert len(found(calls)) >= 20
    assert len([each for each in found(variables) if each.values[0][1]]) >= 5
