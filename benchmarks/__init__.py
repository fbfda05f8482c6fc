"""What EventMQ is measured by. ``python -m benchmarks`` lists the rows, with a name runs one."""
