"""Plugins that ship with EventMQ but are not part of it.

They are loaded through entry points, like any other plugin, and import only public names of
EventMQ.
"""
