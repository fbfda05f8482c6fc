"""The worker: a job manager that holds a session with the broker, and the execution of one job.

`manager` is the session's state machine, `ledger`, `replies` and `lookahead` its parts,
`runner` owns the socket; `execution` runs one job wherever a pool calls it.
"""
