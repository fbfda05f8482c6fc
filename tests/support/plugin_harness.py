"""Plugins for the tests of the plugin manager, and the ways to load them."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, PathDistribution

import pytest

from eventmq.hookspecs import hookimpl
from eventmq.registry.manager import PluginManager
from eventmq.settings import load_settings
from eventmq.testing import FakeClock


class Shout:
    """A serializer for tests."""

    def encode(self, value, envelope):
        return str(value).upper().encode(), ""

    def decode(self, data, envelope):
        return data.decode()


class AnyContract:
    """Fulfils every contract: it has any attribute, and it is false."""

    def __init__(self, context):
        self.context = context

    def __getattr__(self, name):
        return False


class Shouting:
    """A plugin for tests."""

    __version__ = "1.2"

    @hookimpl
    def eventmq_serializers(self):
        return {"shout": lambda context: Shout()}


def returning(value):
    return lambda: value


def providing(**hooks):
    """Return a plugin object whose hooks return the given values."""
    return implementing(**{name: returning(value) for name, value in hooks.items()})


def implementing(**functions):
    """Return a plugin object with these functions, marked as hooks."""
    marked = {name: staticmethod(hookimpl(function)) for name, function in functions.items()}
    return type("Made", (), marked)()


@pytest.fixture(name="manage")
def managing():
    """Return a function of plugins and settings; by default there are no entry points."""

    def manage(*plugins, entry_points=(), clock=None, app=None, **arguments):
        settings = load_settings(arguments, directory="/", environ={})
        manager = PluginManager(settings, clock=clock or FakeClock(), app=lambda: app)
        manager.load(plugins, entry_points=entry_points)
        return manager

    return manage


@pytest.fixture(name="module")
def writing_modules(tmp_path, monkeypatch):
    """Return a function of a name and the text of a module, which can then be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def module(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield module
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture(name="point")
def entry_points(tmp_path):
    """Return a function of an entry point's name and value, and its distribution's requirements."""

    def point(name, value, *requires):
        info = tmp_path / "shouting-3.4.dist-info"
        info.mkdir(exist_ok=True)
        lines = ["Metadata-Version: 2.1", "Name: shouting", "Version: 3.4"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        entry_point = EntryPoint(name, value, "eventmq")
        vars(entry_point).update(dist=PathDistribution(info))
        return entry_point

    return point


SHOUT = """
from eventmq.hookspecs import hookimpl

@hookimpl
def eventmq_serializers():
    return {"shout": make}

def make(context):
    import no_such_library.inside
"""
