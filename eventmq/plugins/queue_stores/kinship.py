"""Where jobs stand in their graphs, by their ids: for events, and for those who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.entries import Kin

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

__all__ = ["Kinship"]

#: Ids in one statement.
_MANY = 250

#: Jobs that are remembered, for the events of their ends; a few megabytes.
_REMEMBERED = 20_000

_FIND = """SELECT nodes.id, root.id, parent.id FROM nodes
           JOIN nodes root ON root.key = nodes.graph
           LEFT JOIN nodes parent ON parent.key = nodes.parent WHERE nodes.id IN ({})"""

_FIND_ONE = _FIND.format("?")
_FIND_MANY = _FIND.format(", ".join("?" * _MANY))


class Kinship:
    """Reads the table ``nodes``, which has the jobs of graphs until these are forgotten."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._known: dict[str, Kin] = {}

    def forget(self) -> None:
        """Forget what was read: some of it may have been rolled back."""
        self._known.clear()

    # hot loop: benchmarks/graphs.py
    def find(self, ids: Sequence[str]) -> list[Kin | None]:
        """Return where each job stands, None for one of no known graph."""
        known = self._known
        missing = [job_id for job_id in ids if job_id not in known]
        if missing:
            if len(known) > _REMEMBERED:
                known.clear()
                missing = list(ids)
            self._read(missing)
        return [known.get(job_id) for job_id in ids]

    def _read(self, ids: Sequence[str]) -> None:
        execute, known = self._db.execute, self._known
        # Of the rest, which is less than a statement has, each has its own.
        even = len(ids) - len(ids) % _MANY
        for start in range(0, even, _MANY):
            for job_id, root, parent in execute(_FIND_MANY, ids[start : start + _MANY]):
                known[job_id] = Kin(root, parent or "")
        for asked in ids[even:]:
            for job_id, root, parent in execute(_FIND_ONE, (asked,)):
                known[job_id] = Kin(root, parent or "")
