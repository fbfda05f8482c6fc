"""``eventmq demo``: the whole machine at work on the sources of the standard library.

`sources` finds files, `measure` reads one, `tasks` is the app that workers load, `run` has the
processes, `report` shows what came out.
"""
