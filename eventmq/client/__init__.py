"""The client: submits jobs, resends each until its receipt, and waits for results.

`machine.ClientMachine` is the state machine: its inputs are messages and ``now``, its outputs
messages and ended requests. `requests` has its requests and connections. `client` is used by
threads and coroutines to wait; `io_loop` has the sockets.

On top: `submit` sends jobs, made of `templates`, `bulk` many of them; `handle` is what it returns;
`graphs` sends chains, groups and chords; `waiting` waits for many jobs; `topics` publishes and
subscribes.
"""
