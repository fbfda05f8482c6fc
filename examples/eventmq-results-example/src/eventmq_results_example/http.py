"""Result backend ``http``: stores results on a web server.

The server accepts ``PUT`` and ``GET`` below one path, as WebDAV servers and object stores do, and
removes a result after the seconds in the header ``X-Expires-In``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from eventmq.sdk import ResultTooLarge, ResultUnavailable, hookimpl, option, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventmq.sdk import Factory, PluginContext, ResultBackend

#: Status codes of a server that refuses a body of that length.
TOO_LARGE = 413


@dataclass(frozen=True)
class Options:
    """Options in the settings, in ``[eventmq.plugins.http]``."""

    url: str = option(doc="URL of the results: the setting result_backend itself.")
    token: str = option("", "Sent as a bearer token.")
    timeout: float = option(10.0, "Seconds within which the server must answer.", gt=0)


class HttpResults:
    """The backend. Thread-safe: it has no state."""

    inline = False  # the bytes do not travel with the worker's reply
    local = False  # any process can get them

    def __init__(self, options: Options) -> None:
        self._options = options
        self._headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}

    def put(self, job_id: str, data: bytes, ttl: float) -> bytes:
        """Put a result; the reference is the job's id, so a repetition changes nothing."""
        self._call(job_id, "PUT", data, X_Expires_In=str(ttl))
        return job_id.encode()

    def get(self, reference: bytes) -> bytes:
        """Get the bytes of a reference, which is quoted since it came over the wire."""
        return self._call(reference.decode(errors="replace"), "GET")

    def close(self) -> None:
        """Do nothing: there is no open connection."""

    def _call(self, job_id: str, method: str, data: bytes | None = None, **more: str) -> bytes:
        place = f"{self._options.url.rstrip('/')}/{quote(job_id, safe='')}"
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        request = Request(place, data, {**self._headers, **headers}, method=method)
        try:
            with urlopen(request, timeout=self._options.timeout) as answer:
                return answer.read()
        except HTTPError as error:
            error.close()
            if error.code == TOO_LARGE and data is not None:
                msg = f"the server does not take a result of {len(data)} bytes"
                raise ResultTooLarge(msg) from error
            msg = f"the result of job {job_id!r}: the server answered {error.code}"
            raise ResultUnavailable(msg) from error
        except OSError as error:
            raise ResultUnavailable(f"the result of job {job_id!r}: {error}") from error


def make_backend(context: PluginContext) -> ResultBackend:
    """Return a backend for its options."""
    return HttpResults(read_options(context, Options))


@hookimpl
def eventmq_result_backends() -> Mapping[str, Factory[ResultBackend]]:
    """Provide ``http`` and ``https``: the schemes of the URLs that name it."""
    return {"http": make_backend, "https": make_backend}
