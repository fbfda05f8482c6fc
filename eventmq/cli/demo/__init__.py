"""``eventmq demo``: broker, workers and client process the sources of the standard library.

`sources` finds and measures files, `tasks` is the app that workers load, `command` has the
processes, the jobs and the report.
"""
