"""A trigger for EventMQ: `workdays`."""

from eventmq_trigger_example.plugin import workdays

__all__ = ["workdays"]
