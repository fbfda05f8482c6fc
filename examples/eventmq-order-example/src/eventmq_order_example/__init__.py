"""A queue order for EventMQ: ``lottery``."""
