"""``eventmq demo``: broker, workers and client process the sources of the standard library.

`sources` finds and measures files, `tasks` is the app that workers load, `run` has the processes,
`report` shows the results.
"""
