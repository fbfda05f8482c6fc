"""An example of a gateway for EventMQ. `plugin` has its hooks."""
