"""Text from others, made safe to print: names, error texts and log messages may hold anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LineFormatter", "last_lines", "log_about", "printable"]


def printable(text: str, *, keep: str = "", escape: Callable[[str], str] = ascii) -> str:
    r"""Return the text with all characters escaped that a terminal acts on instead of showing.

    These are control characters such as ESC, BEL and line breaks, marks that change the direction
    of writing, invisible characters, and halves of surrogate pairs. They are written as in Python:
    ``\x1b``, ``\n``, ``\u202e``. Whatever prints a name or a text that came from elsewhere, in a
    listing, an error or a line of the log, passes it through here.

    Args:
        text: From a job, a peer or a store.
        keep: Characters that stay, such as line breaks of a traceback.
        escape: Returns a character as a literal in quotes, such as `json.dumps` for text that is
            JSON and remains so.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else escape(c)[1:-1] for c in text)


def last_lines(data: bytes, most: int) -> bytes:
    """Return the last whole lines of a text, after one that says that others were cut.

    Args:
        data: The text in UTF-8.
        most: Bytes that are returned at most; a text of so many is returned as it is.
    """
    if len(data) <= most:
        return data
    note = b"[the lines before these were cut]\n"
    end = data[-max(most - len(note), 1) :]
    return (note + end[end.find(b"\n") + 1 :])[:most]


def log_about(
    log: logging.Logger,
    level: int,
    job: tuple[str, str, str, int],
    text: str,
    *args: object,
    frames: str = "",
    exception: BaseException | None = None,
) -> None:
    """Log a line about a job outside of it; the record has the fields that others have inside.

    Args:
        log: The logger.
        level: As of `logging`.
        job: Id, task, queue and attempt.
        text: The line, which names the job itself.
        *args: Merged into it.
        frames: Lines of a traceback that are shown below.
        exception: What these are of.
    """
    if not log.isEnabledFor(level):
        return
    record = log.makeRecord(log.name, level, __file__, 0, text, args, None)
    # Not by ``extra``, which refuses what the factory of ``log-context`` has set.
    record.eventmq_job, record.eventmq_task = job[:2]
    record.eventmq_queue, record.eventmq_attempt = job[2:]
    if frames:
        record.exc_text = frames
        if exception is not None:
            record.exc_info = (type(exception), exception, exception.__traceback__)
    log.handle(record)


class LineFormatter(logging.Formatter):
    """Writes a record as one line, with all text escaped; only tracebacks take several.

    These are indented: the text of an exception may have lines that look like those of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and those below it."""
        return printable(super().format(record), keep="\n\t").replace("\n", "\n    ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        """Return the line without the traceback; a warning of Python has one more."""
        keep = "\n\t" if record.name == "py.warnings" else "\t"
        return printable(super().formatMessage(record).rstrip("\n"), keep=keep)
