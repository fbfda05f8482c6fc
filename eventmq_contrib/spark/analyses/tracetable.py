"""A trace as flat rows and as a tree to look at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from eventmq.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.text import Text

    from eventmq_contrib.spark.analyses.trace import Hop, Step

    Row = Mapping[str, Any]

__all__ = ["BESIDE", "about", "drawn", "hop_rows"]

#: Jobs below one that are drawn; of more only how many are in which state.
BESIDE = 50

_SECOND = 1e6

#: State -> colour on a terminal.
_COLOURS = {"succeeded": "green", "failed": "red", "cancelled": "yellow", "expired": "yellow"}


def about(job_id: str, found: Mapping[str, Hop], steps: Sequence[Step]) -> dict[str, Any]:
    """Return all there is to say of a trace, as one object.

    Args:
        job_id: The job that was asked for.
        found: Of `eventmq_contrib.spark.analyses.trace.hops`.
        steps: The critical path.
    """
    first = min(hop.submitted_us for hop in found.values())
    whole = max(1, steps[-1].to_us - steps[0].from_us) if steps else 1
    return {
        "id": job_id,
        "seconds": whole / _SECOND if steps else None,
        "states": dict(Counter(hop.state for hop in found.values())),
        "jobs": hop_rows(found),
        "critical": [
            {
                "job": step.job, "task": found[step.job].task, "queue": found[step.job].queue,
                "after_s": (step.from_us - first) / _SECOND,
                "waited_s": (step.to_us - step.from_us - step.ran_us) / _SECOND,
                "ran_s": step.ran_us / _SECOND,
                "share": f"{(step.to_us - step.from_us) / whole:.1%}",
            }
            for step in steps
        ],
    }  # fmt: skip


def hop_rows(found: Mapping[str, Hop]) -> list[dict[str, Any]]:
    """Return the jobs as flat rows, by their submission; times in seconds since 1970."""
    return [
        {
            "id": hop.id, "parent": hop.parent, "task": hop.task, "queue": hop.queue,
            "state": hop.state, "attempts": max((run.attempt for run in hop.runs), default=0),
            "submitted": hop.submitted_us / _SECOND,
            "ready": None if hop.ready_us is None else hop.ready_us / _SECOND,
            "ended": None if hop.ended_us is None else hop.ended_us / _SECOND,
            "waited_s": hop.waited_us / _SECOND, "ran_s": hop.ran_us / _SECOND,
            "worker": hop.runs[-1].worker if hop.runs else "", "error": hop.error,
        }
        for hop in found.values()
    ]  # fmt: skip


def drawn(told: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the lines of the tree.

    A job that alone follows another is drawn below it, not inside of it: chains may be long.

    Args:
        told: Of `about`.
    """
    from rich.text import Text

    states = ", ".join(f"{n} {state}" for state, n in told["states"].items())
    took = "" if told["seconds"] is None else f", {_span(told['seconds'])}"
    yield Text(f"trace {printable(told['id'])}: {states}{took}")
    below: dict[str, list[Row]] = {}
    for row in told["jobs"]:
        below.setdefault(row["parent"], []).append(row)
    path = {step["job"] for step in told["critical"]}
    stack = _beside(below.get("", []), "")
    while stack:
        row, head, indent = stack.pop()
        if isinstance(row, str):
            yield Text(head + row)
            continue
        label = _label(row, marked=row["id"] in path, asked=row["id"] == told["id"])
        yield Text(head).append_text(label)
        children = below.get(row["id"], [])
        if len(children) == 1 and _follows(children[0], row):
            stack.append((children[0], indent, indent))
        else:
            stack += _beside(children, indent)


def _beside(rows: Sequence[Row], indent: str) -> list[tuple[Row | str, str, str]]:
    """Return jobs beside each other for the stack: what, before its first line, before the rest."""
    parts: list[Row | str] = [*rows[:BESIDE]]
    if len(rows) > BESIDE:
        rest = Counter(row["state"] for row in rows[BESIDE:])
        more = ", ".join(f"{n} {state}" for state, n in rest.items())
        parts.append(f"{len(rows) - BESIDE} more: {more}")
    entries = [(part, f"{indent}├─ ", f"{indent}│  ") for part in parts]
    entries[-1:] = [(part, f"{indent}└─ ", f"{indent}   ") for part in parts[-1:]]
    return entries[::-1]


def _follows(child: Row, row: Row) -> bool:
    """Say whether a job began after another one had ended."""
    return row["ended"] is not None and (child["ready"] or 0) >= row["ended"]


def _label(row: Row, *, marked: bool, asked: bool) -> Text:
    from rich.text import Text

    label = Text(printable(row["task"]) or "(plain job)", style="bold" if asked else "")
    label.append(" * " if marked else "  ", style="bold")
    label.append(row["state"], style=_COLOURS.get(row["state"], ""))
    tries = f", {row['attempts']} attempts" if row["attempts"] > 1 else ""
    spans = f"  waited {_span(row['waited_s'])}, ran {_span(row['ran_s'])}{tries}  "
    label.append(spans)
    label.append(f"{printable(row['queue'])}  {row['id']}", style="dim")
    if row["error"]:
        label.append(f"  {printable(row['error'])}", style="red")
    return label


def _span(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004
