"""An example of a plugin for EventMQ. `plugin` has its hooks."""
