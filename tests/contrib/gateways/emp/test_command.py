"""Output of the command ``eventmq emp call`` for unusual answers of a server."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from eventmq.errors import BrokerUnavailable
from eventmq_contrib.gateways.emp import client
from eventmq_contrib.gateways.emp.command import emp
from eventmq_contrib.gateways.emp.protocol import EmpFailure


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (EmpFailure("bad\x1b[2J", "no\nluck"), 1, r"error: bad\x1b[2J: no\nluck"),
        (BrokerUnavailable("nobody at\x07 there"), 3, r"error: nobody at\x07 there"),
    ],
)
def test_an_error_of_a_server_is_one_printable_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, shown: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(client.EmpClient, "__init__", refuse)
    result = CliRunner().invoke(emp, ["call", "127.0.0.1:1", "x"], standalone_mode=False)
    assert (code, f"{shown}\n") == (result.return_value, result.stderr)
