"""Processes that run jobs: a fork server, the slots of a pool and the children in them.

`pool` is the side of the job manager, `child` the side of the process that calls tasks. A plugin
registers the pool; other pools use it to run processes elsewhere.
"""
