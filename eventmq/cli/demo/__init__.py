"""``eventmq demo``: broker, workers and client process the sources of the standard library.

`sources` finds and measures files, `tasks` is the app of the workers, `command` runs processes and
jobs and prints the report.
"""
