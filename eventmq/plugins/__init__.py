"""The plugins that are built in; `eventmq.registry.built_ins` names them.

Each module is one plugin and is imported when its name is used. Plugins of others may use
`eventmq.plugins.options` and the registration hooks, and need nothing else from here.
"""
