"""Built-in commands keep the contract of commands."""

from __future__ import annotations

from eventmq.cli.program import program
from eventmq.testing import CommandSuite

program.load()


class TestQueues(CommandSuite):
    """A command that asks a broker."""

    def make(self):
        return program.commands["queues"]

    def prepare(self, app):
        app.send("shop.send", queue="mail")


class TestJob(CommandSuite):
    """A command with an argument, for one thing that may not be there."""

    arguments = ("job-1",)

    def make(self):
        return program.commands["job"]

    def prepare(self, app):
        app.send("shop.send", job_id="job-1")


class TestSettings(CommandSuite):
    """A command that asks no broker."""

    def make(self):
        return program.commands["settings"]


class TestSubscribe(CommandSuite):
    """A command that runs until it is stopped."""

    arguments = None

    def make(self):
        return program.commands["subscribe"]
