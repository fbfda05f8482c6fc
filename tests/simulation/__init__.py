"""Deterministic simulation: a whole EventMQ in one thread, driven by one seed.

Client, broker, job manager and scheduler are the real state machines on the real store; network,
clocks and disk are simulated. ``python -m tests.simulation --seeds 1000`` runs seeds.
docs/reliability.rst says how it works and what it does not cover.
"""
