"""Writes the many files of an hour as one, in a second folder that a manifest describes.

The journal's files are not touched. A large file counts once the manifest names it, and that is
replaced as a whole, so that a compaction which is killed leaves what was there before.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from eventmq.errors import StoreError
from eventmq.events import FileName
from eventmq_contrib.journal.folder import sync_folder
from eventmq_contrib.journal.parquet import arrow_schema, is_whole

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MANIFEST", "Compaction"]

#: Names the files that count.
MANIFEST = "manifest.json"


class Compaction:
    """Compacts the files of hours in which nothing is written any more.

    Args:
        journal: Folder of the journal.
        target: Folder of the large files; made where it is missing.
    """

    def __init__(self, journal: Path, target: Path) -> None:
        self._journal, self._target = journal, target

    def run(self) -> tuple[int, int]:
        """Compact what is new; return how many files became how many.

        Raises:
            StoreError: There is no journal, or a file cannot be read or written.
        """
        if not self._journal.is_dir():
            msg = f"there is no journal in {self._journal}: name its folder with --out"
            raise StoreError(msg)
        try:
            return self._run()
        except OSError as error:
            raise StoreError(f"cannot compact {self._journal}: {error}") from error

    def _run(self) -> tuple[int, int]:
        manifest = self._read()
        self._forget(manifest)
        known = {(entry["hour"], entry["broker"]): entry["of"] for entry in manifest["files"]}
        hours = self._hours()
        open_hours = {broker: hour for hour, broker in sorted(hours)}
        taken = made = 0
        for (hour, broker), files in sorted(hours.items()):
            names = [list(name[1:]) for name, _ in files]
            few = len(files) == 1 and (hour, broker) not in known
            if few or hour == open_hours[broker] or known.get((hour, broker)) == names:
                continue
            others = [e for e in manifest["files"] if (e["hour"], e["broker"]) != (hour, broker)]
            manifest["files"] = [*others, self._merge(hour, files)]
            self._write(manifest)
            taken, made = taken + len(files), made + 1
        return taken, made

    def _forget(self, manifest: dict[str, Any]) -> None:
        """Leave out files that somebody has removed, with the day they were of."""
        there = [each for each in manifest["files"] if (self._target / each["path"]).is_file()]
        if len(there) < len(manifest["files"]):
            manifest["files"] = there
            self._write(manifest)

    def _hours(self) -> dict[tuple[str, str], list[tuple[FileName, Path]]]:
        """Return the sealed files by (hour, broker), each in the order of their numbers."""
        hours: dict[tuple[str, str], list[tuple[FileName, Path]]] = defaultdict(list)
        for path in self._journal.glob("date=*/hour=*/*.parquet"):
            name = FileName.parse(path.name)
            if name is not None:
                hour = path.parent.relative_to(self._journal).as_posix()
                hours[hour, name.broker].append((name, path))
        for files in hours.values():
            files.sort()
        return hours

    def _merge(self, hour: str, files: list[tuple[FileName, Path]]) -> dict[str, Any]:
        """Write the events of some files as one, and return its entry of the manifest."""
        import pyarrow.parquet as pq

        schema = arrow_schema()
        names = [name for name, _ in files]
        name = FileName(names[0].broker, names[0].first, max(each.last for each in names))
        folder = self._target / hour
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"_{name}"
        rows = 0
        with draft.open("wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for _, path in files:
                    if not is_whole(path):
                        raise StoreError(f"{path} is torn: move it away; the others are unharmed")
                    table = _completed(pq.ParquetFile(path).read(), schema)
                    writer.write_table(table)
                    rows += table.num_rows
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / str(name))
        sync_folder(folder)
        return {
            "path": f"{hour}/{name}", "hour": hour, "broker": name.broker, "first": name.first,
            "last": name.last, "rows": rows, "of": [list(each[1:]) for each in names],
        }  # fmt: skip

    # The manifest

    def _read(self) -> dict[str, Any]:
        path = self._target / MANIFEST
        try:
            manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"version": 1, "files": []}
        except ValueError as error:
            msg = f"{path} is not the manifest of a compaction: name another folder with --to"
            raise StoreError(msg) from error
        return manifest

    def _write(self, manifest: dict[str, Any]) -> None:
        draft = self._target / f"_{MANIFEST}"
        with draft.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._target / MANIFEST)
        sync_folder(self._target)


def _completed(table: Any, schema: Any) -> Any:
    """Return a table with all columns, also those that an earlier EventMQ did not write."""
    import pyarrow as pa

    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).cast(schema)
