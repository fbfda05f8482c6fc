"""The client: submits jobs, resends each until its receipt, and waits for results.

`machine.ClientMachine` is the state machine: messages and ``now`` go in, messages and ended
requests come out. `requests` are its units of work, `connection` is one broker. `client` is what
threads and coroutines wait with; `io_loop` has the sockets.

On top: `submit` sends jobs, made of `templates`; `handle` is what it returns; `graphs` sends
chains, groups and chords; `outcomes` reads results and errors; `waiting` waits for many jobs;
`topics` publishes and subscribes.
"""
