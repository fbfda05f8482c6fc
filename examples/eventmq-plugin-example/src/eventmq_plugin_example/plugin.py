"""The hooks of this plugin: what it provides, by name.

The module imports only EventMQ and the standard library at its top. A plugin that needs another
library imports it inside the factory, so that a missing one matters only to those who use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.sdk import hookimpl

from eventmq_plugin_example.jsonzlib import make_serializer
from eventmq_plugin_example.twochoices import make_strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, RoutingStrategy, Serializer


@hookimpl
def eventmq_serializers() -> Mapping[str, Factory[Serializer]]:
    """Provide ``json-zlib``."""
    return {"json-zlib": make_serializer}


@hookimpl
def eventmq_routing_strategies() -> Mapping[str, Factory[RoutingStrategy]]:
    """Provide ``random-two-choices``."""
    return {"random-two-choices": make_strategy}
