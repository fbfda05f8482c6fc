"""Built-in retry policies; tasks name one with its arguments by a `eventmq.policies.Backoff`."""
