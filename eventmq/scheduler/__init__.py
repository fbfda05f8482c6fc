"""The scheduler: submits the job of each schedule at its fire times.

`machine` decides what is due, `runner` reads the store and submits. Neither depends on the kind of
the store or on how triggers are made.
"""
