"""The client: hands jobs to a broker, keeps asking until there is a receipt, waits for results.

`machine.ClientMachine` is the state machine: messages and ``now`` go in, messages and settled
requests come out. `runner.ClientRunner` owns the one thread with the sockets; callers' threads
hand over what they want and wait. Everything else here is what callers use.
"""
