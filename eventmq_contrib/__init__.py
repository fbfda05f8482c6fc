"""Plugins that ship with EventMQ but are not part of it.

They come in through entry points only, exactly as any other plugin does, and import
nothing of EventMQ but public names.
"""
