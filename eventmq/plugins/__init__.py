"""The plugins that are built in; `eventmq.registry.built_ins` names them.

Each module is one plugin and is imported when its name is used. It takes contracts and options from
`eventmq.sdk`, as plugins of others do, which need nothing from here.
"""
