"""The scheduler: which slots are due, and who fires them.

`machine` decides, `runner` does. Neither knows where schedules are kept nor how triggers are made.
"""
