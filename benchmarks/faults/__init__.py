"""Fault injection: ``python -m benchmarks.faults --all``, or with the names of rows."""
