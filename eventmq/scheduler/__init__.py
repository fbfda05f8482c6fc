"""The scheduler: submits the job of each schedule at its fire times.

`machine` decides what is due, `runner` reads the store and submits. Neither knows where schedules
are kept nor how triggers are made.
"""
