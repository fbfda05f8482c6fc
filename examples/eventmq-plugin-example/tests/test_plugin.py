"""EventMQ takes the plugin and finds its names."""

from __future__ import annotations

from eventmq.registry.manager import PluginManager
from eventmq.registry.names import ROUTING_STRATEGY, SERIALIZER
from eventmq.settings import load_settings

from eventmq_plugin_example import plugin


def test_the_names_can_be_chosen(tmp_path) -> None:
    settings = load_settings({"disabled_plugins": ["example"]}, directory=tmp_path, environ={})
    manager = PluginManager(settings)
    manager.load([plugin])
    assert "json-zlib" in manager.names(SERIALIZER)
    assert "random-two-choices" in manager.names(ROUTING_STRATEGY)
