"""An example of a command for EventMQ. `plugin` has its hook."""
