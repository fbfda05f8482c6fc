"""Topics: ``publish`` and ``subscribe``."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import NO_BROKER, Command
from eventmq.cli.output import printable, to_json
from eventmq.cli.processes import interrupt_at_signals
from eventmq.cli.target import takes_json, takes_target

if TYPE_CHECKING:
    from eventmq.cli.target import Target

__all__ = ["COMMANDS"]


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.argument("topic")
@click.argument("value")
@takes_json
@takes_target
def publish(target: Target, topic: str, value: str, as_json: bool) -> None:
    """Publish a message.

    It reaches the current subscribers of TOPIC and is not stored. A VALUE that is JSON is sent as
    JSON, any other as text. With --json it prints an object with "topic" and "value" as they were
    sent.
    """
    message = _value(value)
    with target.asking() as app:
        app.publish(topic, message)
    if as_json:
        click.echo(_line(topic, message, as_json=True))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command(cls=Command, exits={NO_BROKER: ""})
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Exit after this many messages.")
@takes_json
@takes_target
def subscribe(target: Target, topics: tuple[str, ...], count: int | None, as_json: bool) -> None:
    """Print published messages.

    Each message whose topic begins with a TOPIC is one line; with --json an object with "topic" and
    "value". Ctrl-C or SIGTERM stops it.
    """
    with target.asking() as app:
        app.ask("ping")  # fails with the best error message
        interrupt_at_signals()
        with suppress(KeyboardInterrupt), app.subscribe(*topics) as messages:
            click.echo(f"subscribed to {', '.join(map(printable, topics))}", err=True)
            for message in islice(messages, count):
                click.echo(_line(message.topic, message.value, as_json=as_json))


def _line(topic: str, value: object, *, as_json: bool) -> str:
    if as_json:
        return to_json({"topic": topic, "value": value})
    return f"{printable(topic)} {printable(to_json(value))}"


COMMANDS = (publish, subscribe)
