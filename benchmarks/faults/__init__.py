"""Faults on demand: ``python -m benchmarks.faults --all``, or some rows of it by name."""
