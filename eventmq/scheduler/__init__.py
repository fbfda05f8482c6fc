"""The scheduler: which slots are due, and who fires them.

`machine` decides, `runner` does, and fires by `runner_batches`. None of them knows where schedules
are kept nor how triggers are made.
"""
