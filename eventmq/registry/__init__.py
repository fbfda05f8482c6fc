"""Plugin registry: finds and loads plugins, and makes the objects that they provide.

Built-in plugins are listed in `BUILT_INS` by module and name; a module is imported when its name is
used, and registers like any other plugin. After them come entry points of the group ``eventmq``,
modules that the settings name, and objects passed to the app. An app owns one `PluginManager`.
"""
