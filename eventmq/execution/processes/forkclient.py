"""The job manager's handle of the fork server: starts it, requests children, receives exits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import eventmq.errors
from eventmq.errors import EventMQError, PluginError
from eventmq.execution.processes import control

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ForkServerHandle", "shared_records"]

#: Seconds for the server to kill its children and to end.
END_TIMEOUT = 5.0

#: Seconds within which a message is complete.
MESSAGE_TIMEOUT = 5.0

_PROGRAM = (
    "import sys; sys.path = [{root!r}, *filter(None, sys.path)]; "  # not the working directory
    "from eventmq.execution.processes.forkserver import main; main({control}, {records})"
)


class ForkServerHandle:
    """One fork server. Blocks only in `start` and `close`.

    Args:
        loader: ``module:function`` that returns the executor.
        arguments: Its keyword arguments, plain data.
        records: Descriptor of the shared records.
        recycling: Jobs and bytes of memory after which a child is replaced, 0 for never.
    """

    def __init__(
        self, loader: str, arguments: Mapping[str, Any], records: int, recycling: tuple[int, int]
    ) -> None:
        self._config = {
            "path": sys.path,
            "loader": loader,
            "arguments": dict(arguments),
            "recycling": recycling,
        }
        self._records = records
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float) -> None:
        """Start the server and wait until it has loaded the app.

        Raises:
            EventMQError: The app cannot be loaded; the message has the remedy.
            PluginError: The server ended or was not ready within ``timeout`` seconds.
        """
        own_end, server_end = socket.socketpair()
        root = str(Path(__file__).parents[3])
        program = _PROGRAM.format(root=root, control=server_end.fileno(), records=self._records)
        with server_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(server_end.fileno(), self._records),
            )
        self._socket = own_end
        try:
            self._await_ready(timeout)
        except BaseException:
            self.close()
            raise
        own_end.settimeout(MESSAGE_TIMEOUT)

    def _await_ready(self, timeout: float) -> None:
        assert self._socket is not None  # noqa: S101 - start has just made it
        self._socket.settimeout(timeout)
        try:
            control.send(self._socket, self._config)
            message, _ = control.receive(self._socket)
        except TimeoutError:
            msg = f"the app was not loaded within {timeout:g} s (pool option start_timeout)"
            raise PluginError(msg) from None
        except (EOFError, ConnectionError):
            assert self._process is not None  # noqa: S101
            code = self._process.wait(END_TIMEOUT)
            msg = f"the process that loads the app ended with status {code}; see its output"
            raise PluginError(msg) from None
        if "failed" in message:
            raise _rebuild(*message["failed"])

    def fileno(self) -> int:
        """Return the descriptor that is readable when `message` has a message."""
        return -1 if self._socket is None else self._socket.fileno()

    def spawn(self, slot: int, fds: Sequence[int]) -> None:
        """Request a child for ``slot``.

        Raises:
            EOFError: The server has ended.
        """
        assert self._socket is not None  # noqa: S101
        try:
            control.send(self._socket, {"spawn": slot}, fds)
        except ConnectionError as error:
            raise EOFError from error

    def message(self) -> dict[str, Any]:
        """Return the next message; call it when the descriptor is readable.

        Raises:
            EOFError: The server has ended.
        """
        assert self._socket is not None  # noqa: S101
        try:
            return control.receive(self._socket)[0]
        except TimeoutError as error:
            raise EOFError from error

    def close(self) -> None:
        """End the server and its children; wait for it. Idempotent."""
        sock, self._socket = self._socket, None
        process, self._process = self._process, None
        if sock is not None:
            sock.close()
        if process is None:
            return
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _rebuild(name: str, text: str) -> EventMQError:
    """Return the error of the server: an EventMQError if a text is enough to construct it."""
    kind = getattr(eventmq.errors, name, PluginError)
    try:
        error = kind(text)
    except TypeError:
        error = PluginError(text)
    return error if isinstance(error, EventMQError) else PluginError(text)


def shared_records(size: int) -> int:
    """Return the descriptor of ``size`` zero bytes of unnamed memory that processes can share."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("eventmq-records", os.MFD_CLOEXEC)
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="eventmq-records-")
        Path(path).unlink()
    os.ftruncate(fd, size)
    return fd
