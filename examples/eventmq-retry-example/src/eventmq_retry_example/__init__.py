"""A retry policy for EventMQ: `fibonacci`."""

from eventmq_retry_example.plugin import fibonacci

__all__ = ["fibonacci"]
