"""The client: hands jobs to a broker, keeps asking until there is a receipt, waits for results.

`machine.ClientMachine` is the state machine: messages and ``now`` go in, messages and settled
requests come out; `errands` are what it is asked for, `connection` is one broker, `ledger` what is
open. `runner.ClientRunner` is what threads and coroutines wait with; `runner_loop` has the sockets.

On top: `submitter` sends jobs (`templates`, `parts`, `delivery`, `batches`), `handle` is what it
returns, `results`, `outcomes` and `waiting` read their ends, `topics` publishes and subscribes.
"""
