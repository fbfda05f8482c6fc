"""Submit one job: ``call``."""

from __future__ import annotations

import ast
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import click

from eventmq.cli.command import FAILED, NO_BROKER, Command
from eventmq.cli.output import to_json
from eventmq.cli.target import takes_json, takes_target
from eventmq.errors import JobError, ResultError, ResultTimeout, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eventmq.app import EventMQ
    from eventmq.cli.target import Target
    from eventmq.client.handle import Job

__all__ = ["COMMANDS", "find_task", "read_arguments"]

_KEYWORD = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)

#: Negative numbers are arguments, not options.
_CONTEXT = {"ignore_unknown_options": True}


_EXITS = {FAILED: "the job failed, or its result did not come in time", NO_BROKER: ""}


@click.command(cls=Command, context_settings=_CONTEXT, exits=_EXITS)
@click.argument("task")
@click.argument("arguments", nargs=-1, metavar="[JSON]... [KEY=JSON]...")
@click.option("--wait", is_flag=True, help="Wait for the result and print it as JSON.")
@click.option("--timeout", type=float, metavar="S", help="Maximum wait in seconds; default: 60.")
@click.option("--queue", metavar="NAME", help="The queue; default: that of the task.")
@takes_json
@takes_target
def call(
    *,
    target: Target,
    task: str,
    arguments: tuple[str, ...],
    wait: bool,
    timeout: float | None,
    queue: str | None,
    as_json: bool,
) -> None:
    """Submit one job.

    It prints the job's id, or with --wait its result. With --json it prints an object with "id",
    "state", "result" and "error", also if the job failed or did not end in time.

    Arguments are JSON: numbers, true, null, '"text"', '[1, 2]'. With -A the task is looked up in
    the app, and the name of its module may be left out if the task is unambiguous; without -A the
    name is sent unchanged.
    """
    args, kwargs = read_arguments(arguments)
    with target.asking() as app:
        if target.app_name:
            job = _submit(app, find_task(app, task), (args, kwargs), queue)
        else:
            job = app.send(task, args, kwargs, queue=queue)
        if as_json:
            _print_object(job, timeout, wait=wait)
        elif wait:
            try:
                click.echo(to_json(_result(job, timeout)))
            except KeyboardInterrupt:
                click.echo(
                    f"not waiting any longer; the job continues: eventmq job {job.id}", err=True
                )
                raise
        else:
            click.echo(job.id)


def _result(job: Job[Any], timeout: float | None) -> Any:
    return job.get() if timeout is None else job.get(timeout)


def _print_object(job: Job[Any], timeout: float | None, *, wait: bool) -> None:
    """Print a job and its result as an object, then raise the error of `get`, if any."""
    shown: dict[str, Any] = {"id": job.id, "state": "", "result": None, "error": None}
    try:
        if wait:
            shown["result"] = _result(job, timeout)
        shown["state"] = job.state
    except (JobError, ResultError) as error:
        shown["state"] = error.state if isinstance(error, ResultTimeout) else job.state
        shown["error"] = str(error)
        raise
    finally:
        click.echo(to_json(shown, indent=2))


def read_arguments(arguments: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Parse JSON arguments; return positional and keyword arguments."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, text in enumerate(arguments, 1):
        keyword = _KEYWORD.fullmatch(text)
        if keyword:
            name = keyword[1]
            kwargs[name] = _json(keyword[2], f"the argument {name!r}", name)
        elif text.startswith("--"):
            raise click.NoSuchOption(text, ctx=click.get_current_context())
        elif kwargs:
            raise click.UsageError(f"argument {position}, {text}, stands after one with a name")
        else:
            args.append(_json(text, f"argument {position}"))
    return args, kwargs


def _right(text: str, name: str) -> str:
    """Return the correct form of an argument that is not JSON, for a command line."""
    try:
        value, words = ast.literal_eval(text), "JSON writes it as"
        right = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        words, right = "if it is a text, write", json.dumps(text, ensure_ascii=False)
    return f"{words} {shlex.quote(f'{name}={right}' if name else right)}"


def _json(text: str, subject: str, name: str = "") -> Any:
    try:
        return json.loads(text)
    except ValueError:
        msg = f"{subject} is not JSON: {text}; {_right(text, name)}"
        raise click.UsageError(msg, ctx=click.get_current_context()) from None


def find_task(app: EventMQ, name: str) -> str:
    """Return the full name of a task of an app."""
    tasks = app.tasks
    if name in tasks:
        return name
    short = [full for full in tasks if full.endswith(f".{name}")]
    if len(short) == 1:
        return short[0]
    hint = did_you_mean(name, tasks)
    if "did you mean" not in hint:
        near = {full.rpartition(".")[2]: full for full in tasks}
        hint = did_you_mean(name, near) if "did you mean" in did_you_mean(name, near) else hint
    raise click.UsageError(f"the app has no task {name!r}; {hint}")


def _submit(
    app: EventMQ, name: str, arguments: tuple[Sequence[Any], Mapping[str, Any]], queue: str | None
) -> Job[Any]:
    args, kwargs = arguments
    task = app.tasks[name]
    try:
        task.check(args, kwargs)
    except TypeError as error:
        raise click.UsageError(str(error)) from error
    return task.apply_async(args, kwargs, queue=queue)


COMMANDS = (call,)
