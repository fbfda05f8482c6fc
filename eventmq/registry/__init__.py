"""Finds plugins, loads them, and makes what they provide.

Built-in plugins stand in `BUILT_INS` by module and name; a module is imported when its name is
used, and registers through the same door as every other plugin. After them come entry points of
the group ``eventmq``, modules that the settings name, and objects given to the app. An app owns
one `PluginManager`.
"""

from __future__ import annotations

from eventmq.registry.built_ins import BUILT_INS
from eventmq.registry.loader import Plugin
from eventmq.registry.manager import PluginManager, split_switches

__all__ = ["BUILT_INS", "Plugin", "PluginManager", "split_switches"]
