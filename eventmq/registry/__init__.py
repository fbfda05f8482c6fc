"""Finds plugins, loads them, and makes what they provide.

Built-in plugins stand in `BUILT_INS` by module and name; a module is imported when its name is
used, and registers through the same door as every other plugin. After them come entry points of
the group ``eventmq``, modules that the settings name, and objects given to the app. An app owns
one `PluginManager`.
"""
