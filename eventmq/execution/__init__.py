"""Running one job: executor, middleware chain, streaming, cancellation."""
