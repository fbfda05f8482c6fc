"""Writes generated events as the sealed files of a journal; each benchmark chooses their content.

The files have seal logs, so that an audit of them is a proof.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from eventmq.events import HOUR_US, FileName, partition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["FILE", "write_part"]

#: Events in a file, as in files of the journal.
FILE = 65_536


def write_part(folder: Path, columns: Mapping[str, Any]) -> None:
    """Write at most `FILE` events of one broker, as a file for each of their hours.

    Args:
        folder: Folder of the journal.
        columns: Column -> array, in the order of the numbers; missing columns are null.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eventmq_contrib.journal.parquet import arrow_schema
    from eventmq_contrib.journal.seals import SealLog, seal_of

    schema = arrow_schema()
    seq, at = np.asarray(columns["seq"]), np.asarray(columns["ts_us"])
    arrays = [
        _array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.nulls(len(seq), field.type)
        for field in schema
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    broker = table["broker_id"][0].as_py()
    log = SealLog(folder, broker)
    folder.mkdir(parents=True, exist_ok=True)
    log.open([])
    # A file never spans an hour.
    bounds = [0, *(np.flatnonzero(np.diff(at // HOUR_US)) + 1).tolist(), len(at)]
    for begin, end in pairwise(bounds):
        name = FileName(broker, int(seq[begin]), int(seq[end - 1]))
        hour = partition(int(at[begin]))
        path = folder / hour / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = table.slice(begin, end - begin)
        pq.write_table(part, path, compression="zstd", write_page_checksum=True)
        log.append(seal_of(name, hour, path.read_bytes()))


def _array(values: Any) -> Any:
    import pyarrow as pa

    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
