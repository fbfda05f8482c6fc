"""Plugins that ship with EventMQ but are not part of it.

They come in through entry points only, exactly as a plugin of somebody else does, and import
nothing of EventMQ but public names.
"""
