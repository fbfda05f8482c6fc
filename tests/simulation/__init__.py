"""A whole EventMQ in one thread, over a simulated network, clock and disk, driven by one seed.

The client, the broker, the job manager and the scheduler are the real state machines on the real
store; only what they run on is simulated. ``python -m tests.simulation --seeds 1000`` runs seeds,
docs/explanation/simulation.rst says how it works and what it does not try.
"""
