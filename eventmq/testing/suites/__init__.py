"""Conformance suites: pytest classes that test the implementation of an interface.

Each module has one class for one contract of `eventmq.interfaces`. Subclass it in a test file and
define ``make``; its tests then run against your object. The built-in plugins pass them too.
"""
