"""EventMQ beside other task queues: the same tasks and process counts, in turn, in one run."""
