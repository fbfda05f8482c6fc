"""What a job that is submitted from within another one says of it: its parent, and their root.

A job outside of others says nothing, so the header text of jobs of one task stays the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventmq.headers import Headers, format_headers, parse_headers
from eventmq.running import current

if TYPE_CHECKING:
    from eventmq.client.templates import Template, Written
    from eventmq.running import JobContext

__all__ = ["Lineage", "related"]


class Lineage:
    """Marks the templates of jobs. Thread-safe."""

    def __init__(self) -> None:
        #: A task often submits many jobs of one template: (its job, template, marked template).
        self._last: tuple[JobContext, Template, Template] | None = None

    def mark(self, template: Template) -> Template:
        """Return the template as the running job submits it; as it is where there is none."""
        job = current.get(None)
        if job is None:
            return template
        last = self._last
        if last is not None and last[0] is job and last[1] is template:
            return last[2]
        more = _lacking(template.headers, job)
        marked = template.extended(more) if more else template
        self._last = job, template, marked
        return marked


def related(written: Written) -> Written:
    """Return a job that has no template, as the running job submits it.

    A graph stays as it is: the jobs in it say it.
    """
    job = current.get(None)
    if job is None or written.headers.startswith("nodes:"):
        return written
    extra = tuple(_lacking(parse_headers(written.headers), job).items())
    texts = [text for text in (written.headers, format_headers(Headers(extra=extra))) if text]
    return written._replace(headers=",".join(texts))


def _lacking(headers: Headers, job: JobContext) -> dict[str, str]:
    """Return what a job says of the running one, without what its caller has said."""
    said = dict(headers.extra)
    return {name: value for name, value in job.lineage().items() if name not in said}
