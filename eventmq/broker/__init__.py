"""The broker: admission, windows, leases, dispatch and outcomes.

`core.BrokerCore` is the state machine: messages, write results and ``now`` go in, messages and
writes come out. `runner.BrokerRunner` owns the sockets, the store and the clock, and
nothing else does.
"""
