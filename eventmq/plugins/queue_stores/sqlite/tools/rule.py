"""One rule of a sound store: what breaks it, what that means, and what is done about it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from eventmq.plugins.database import UNREADABLE
from eventmq.sdk import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import apsw

__all__ = ["RESTORE", "Rule", "first_of", "run", "text_of"]

#: Things that a finding names.
NAMED = 3

#: What helps where nothing else does.
RESTORE = "restore a backup, or copy what can be read into a new store: eventmq fsck --salvage DEST"


class Rule(NamedTuple):
    """A rule that a sound store keeps.

    ``find`` is a SELECT of one column, or a function: it gives the names of what breaks the rule.
    ``mend`` makes that right and loses nothing that anybody could still need.
    """

    name: str
    where: str
    #: What is found, with ``{n}`` and ``{some}``.
    says: str
    find: str | Callable[[apsw.Connection], Iterable[str]]
    means: str
    help: str = RESTORE
    mend: Callable[[apsw.Connection], None] | None = None
    #: Things that the finding names.
    named: int = NAMED

    def rows(self, db: apsw.Connection) -> Iterator[str]:
        """Yield the names of what breaks the rule."""
        if callable(self.find):
            yield from self.find(db)
        else:
            sql = f"WITH found (name) AS ({self.find}) SELECT CAST(name AS BLOB) FROM found"
            yield from (text_of(name) for (name,) in db.execute(sql))

    def finding(self, db: apsw.Connection) -> Finding | None:
        """Return what is wrong, None for nothing; to meet a damaged page is a finding too."""
        try:
            sample, n = first_of(self.rows(db), self.named)
        except UNREADABLE as error:
            says = f"the check {self.name!r} could not be done: {error}"
            means = "the file is damaged where these rows are"
            return Finding(self.name, self.where, says, means, RESTORE, repairable=False)
        if not n:
            return None
        safe = self.mend is not None
        advice = "eventmq fsck --repair puts it right" if safe else self.help
        text = self.says.format(n=n, some=sample)
        return Finding(self.name, self.where, text, self.means, advice, repairable=safe)


def text_of(data: bytes | None) -> str:
    """Return a text that was read as ``CAST(... AS BLOB)``, where it is damaged, too."""
    return (data or b"").decode(errors="surrogateescape")


def first_of(names: Iterable[str], max_names: int = NAMED) -> tuple[str, int]:
    """Return the first names as text, and how many there are."""
    remaining = iter(names)
    shown = list(islice(remaining, max_names))
    more = sum(1 for _ in remaining)
    text = ", ".join(ascii(name)[1:-1] for name in shown)
    return text + (f" and {more} more" if more else ""), len(shown) + more


def run(rules: Iterable[Rule], db: apsw.Connection) -> Iterator[Finding]:
    """Yield what is wrong."""
    yield from filter(None, (rule.finding(db) for rule in rules))
