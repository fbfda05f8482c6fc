"""Built-in retry policies, and `backoff`, by which a task names one with its arguments."""
