"""Conformance suites: what every implementation of an interface must do, as pytest classes.

Each module has one class for one contract of `eventmq.interfaces`. Subclass it in a test file,
give it ``make``, and its tests run against your object. Built-in plugins pass them too.
"""
