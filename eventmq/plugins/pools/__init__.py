"""Worker pools: `prefork` runs jobs in child processes, `threads` in threads, `asyncio` in a loop.

`options` reads the options of all of them, `assigned` holds the chunks of a slot and the outcomes
of its jobs, `part_sink` forwards the parts and the progress of a running job.
"""
