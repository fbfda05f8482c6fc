"""The worker: a job manager that holds a session with the broker and runs its jobs in a pool.

`manager` is the state machine: it decides what happens when a chunk arrives, a job ends or a slot
dies. Its parts are `session`, `slots`, `watchdog`, `inputs` and `streams`. `runner` owns the socket
and the loop. `eventmq.execution` runs a single job, wherever a pool calls it.
"""
