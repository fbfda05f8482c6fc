"""Safe output of text from other sources: names, error texts and log messages may hold anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LineFormatter", "last_lines", "log_about", "printable"]


def printable(text: str, *, keep: str = "", escape: Callable[[str], str] = ascii) -> str:
    r"""Return the text with all characters escaped that a terminal would interpret.

    These are control characters such as ESC, BEL and line breaks, marks that change the direction
    of writing, invisible characters, and halves of surrogate pairs. They are written as in Python:
    ``\x1b``, ``\n``, ``\u202e``. Code that prints a name or text from another source, in a listing,
    an error or a log line, must pass it through this function.

    Args:
        text: Text from a job, a peer or a store.
        keep: Characters that are not escaped, such as line breaks of a traceback.
        escape: Returns a character as a literal in quotes; `json.dumps` for text that must remain
            valid JSON.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else escape(c)[1:-1] for c in text)


def last_lines(data: bytes, max_bytes: int) -> bytes:
    """Return the last whole lines of a text, after a line that marks the cut.

    Args:
        data: The text in UTF-8.
        max_bytes: Maximum number of bytes; a text of up to this length is returned unchanged.
    """
    if len(data) <= max_bytes:
        return data
    notice = b"[the lines before these were cut]\n"
    end = data[-max(max_bytes - len(notice), 1) :]
    return (notice + end[end.find(b"\n") + 1 :])[:max_bytes]


def log_about(
    log: logging.Logger,
    level: int,
    job: tuple[str, str, str, int],
    text: str,
    *args: object,
    frames: str = "",
    exception: BaseException | None = None,
) -> None:
    """Log a line about a job from outside the job, with the fields that its own lines have.

    Args:
        log: The logger.
        level: Level of `logging`.
        job: Id, task, queue and attempt.
        text: The line, which names the job itself.
        *args: Arguments of the line's ``%`` placeholders.
        frames: Lines of a traceback to show below.
        exception: The exception that the traceback belongs to.
    """
    if not log.isEnabledFor(level):
        return
    record = log.makeRecord(log.name, level, __file__, 0, text, args, None)
    # Not with ``extra``, which rejects fields that the factory of ``log-context`` has set.
    record.eventmq_job, record.eventmq_task = job[:2]
    record.eventmq_queue, record.eventmq_attempt = job[2:]
    if frames:
        record.exc_text = frames
        if exception is not None:
            record.exc_info = (type(exception), exception, exception.__traceback__)
    log.handle(record)


class LineFormatter(logging.Formatter):
    """Writes a record as one line, with all text escaped; only tracebacks take several lines.

    Their lines are indented, so that the text of an exception cannot imitate lines of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback below it."""
        return printable(super().format(record), keep="\n\t").replace("\n", "\n    ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        """Return the line without the traceback; a warning of Python has a second line."""
        keep = "\n\t" if record.name == "py.warnings" else "\t"
        return printable(super().formatMessage(record).rstrip("\n"), keep=keep)
