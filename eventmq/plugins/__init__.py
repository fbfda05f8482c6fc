"""Built-in plugins; `eventmq.registry.names` lists them.

A module contains one plugin, or all small plugins of a kind, and is imported when one of their
names is used. It takes contracts and options from `eventmq.sdk`, as third-party plugins do. Those
need nothing from this package.
"""
