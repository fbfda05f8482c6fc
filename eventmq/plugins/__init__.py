"""The plugins that are built in; `eventmq.registry.names` names them.

A module has one plugin, or all small ones of a kind, and is imported when the name of one is used.
It takes contracts and options from `eventmq.sdk`, as plugins of others do, which need nothing from
here.
"""
