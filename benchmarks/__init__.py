"""Benchmarks of EventMQ. ``python -m benchmarks`` lists the rows; with a name it runs one."""
