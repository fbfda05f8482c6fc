"""The commands about keys: what they write, what they refuse, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.wire.curve import read_public, read_secret
from tests.support.cli_harness import Cli, open_cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return open_cli(tmp_path, monkeypatch)


def ok(cli: Cli, *arguments: str) -> str:
    result = cli.run("keys", *arguments)
    assert 0 == result.exit_code, result.stderr
    return result.stdout


@pytest.fixture
def broker(cli: Cli) -> Cli:
    ok(cli, "new", "--broker")
    ok(cli, "new", "web")
    return cli


def test_a_pair_is_two_files_of_which_one_is_secret(cli: Cli) -> None:
    assert "web.key\n" == ok(cli, "new", "web")
    secret = cli.folder / "web.key_secret"
    assert 0o600 == secret.stat().st_mode & 0o777
    assert read_secret(secret).public == read_public(cli.folder / "web.key").public
    assert read_secret(secret).secret not in (cli.folder / "web.key").read_text()


def test_no_key_is_shown(cli: Cli) -> None:
    ok(cli, "new", "--broker")
    ok(cli, "new", "web")
    output = ok(cli, "authorize", "web.key", "--role", "client") + ok(cli, "list")
    for path in ("web.key_secret", ".eventmq/keys/broker.key_secret"):
        assert read_secret(cli.folder / path).secret not in output


def test_the_brokers_pair_is_in_its_data_directory(cli: Cli) -> None:
    assert ".eventmq/keys/broker.key\n" == ok(cli, "new", "--broker")
    assert "d/keys/broker.key\n" == ok(cli, "new", "--broker", "--data-dir", "d")
    assert "k/broker.key\n" == ok(cli, "new", "--broker", "--keys-dir", "k")
    assert 0o700 == (cli.folder / "k").stat().st_mode & 0o777
    cli.write("eventmq.toml", 'keys_dir = "set"')
    assert "set/broker.key\n" == ok(cli, "new", "--broker")


def test_the_data_directory_that_it_makes_is_private(cli: Cli) -> None:
    """The broker would warn of it at its first start."""
    ok(cli, "new", "--broker")
    for folder in (".eventmq", ".eventmq/keys"):
        assert 0o700 == (cli.folder / folder).stat().st_mode & 0o777


def test_a_pair_can_go_to_another_folder(cli: Cli) -> None:
    (cli.folder / "there").mkdir()
    assert "there/web.key\n" == ok(cli, "new", "web", "--dir", "there")


def test_keys_are_never_overwritten(broker: Cli) -> None:
    before = (broker.folder / "web.key_secret").read_bytes()
    for arguments in (["web"], ["--broker"]):
        code, message = broker.error("keys", "new", *arguments)
        assert 2 == code
        assert "exists already; keys are never overwritten" in message
    (broker.folder / "web.key").unlink()
    assert "never overwritten" in broker.error("keys", "new", "web")[1]
    assert before == (broker.folder / "web.key_secret").read_bytes()


def test_authorised_clients_are_listed(broker: Cli) -> None:
    for name in ("jobs", "gate"):
        ok(broker, "new", name)
    ok(broker, "authorize", "web.key", "--role", "client", "--group", "shop")
    ok(broker, "authorize", "jobs.key", "--role", "worker", "--role", "client", "--name", "host-1")
    ok(broker, "authorize", "gate.key", "--role", "gateway", "--serves", "in", "--submits", "a,b")
    rows = broker.json("keys", "list", "--json")
    assert [
        ("gate", "gateway", "", "in", "a%2Cb"),
        ("host-1", "client,worker", "", "", ""),
        ("web", "client", "shop", "", ""),
    ] == [tuple(row[k] for k in ("name", "roles", "group", "serves", "submits")) for row in rows]
    assert rows[2]["public_key"] == read_public(broker.folder / "web.key").public
    assert 16 == len(rows[2]["fingerprint"])


def test_without_clients_the_list_is_empty(broker: Cli) -> None:
    assert [] == broker.json("keys", "list", "--json")


def test_to_authorise_again_changes_the_roles(broker: Cli) -> None:
    ok(broker, "authorize", "web.key", "--role", "client")
    ok(broker, "authorize", "web.key", "--role", "admin")
    assert ["admin"] == [row["roles"] for row in broker.json("keys", "list", "--json")]


def test_a_name_is_not_given_to_another_key(broker: Cli) -> None:
    """Nor does a key get another name: revoking a name must revoke its key."""
    ok(broker, "authorize", "web.key", "--role", "client")
    ok(broker, "new", "other")
    for arguments in (["other.key", "--name", "web"], ["web.key", "--name", "web2"]):
        code, message = broker.error("keys", "authorize", *arguments, "--role", "client")
        assert 2 == code
        assert "revoke that first: eventmq keys revoke web" in message


def test_a_revoked_client_is_gone(broker: Cli) -> None:
    ok(broker, "authorize", "web.key", "--role", "client")
    assert "web is revoked\n" == ok(broker, "revoke", "web")
    assert [] == broker.json("keys", "list", "--json")
    code, message = broker.error("keys", "revoke", "web")
    assert 4 == code
    assert "there is no client 'web'" in message


@pytest.mark.parametrize("name", ["../broker", "/etc/passwd", "we*", ".", ""])
def test_only_a_client_is_revoked(broker: Cli, name: str) -> None:
    """The name is no path and no pattern."""
    ok(broker, "authorize", "web.key", "--role", "client")
    assert 4 == broker.run("keys", "revoke", name).exit_code
    assert 1 == len(broker.json("keys", "list", "--json"))
    assert (broker.folder / ".eventmq/keys/broker.key").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["authorize", "web.key"], "missing option '--role'"),
        (["authorize", "web.key", "--role", "king"], "unknown role 'king'; known are client,"),
        (["authorize", "web.key_secret", "--role", "client"], "name the file beside it"),
        (["authorize", "no.key", "--role", "client"], "no.key cannot be read"),
        (["authorize", "web.key", "--role", "client", "--serves", "q"], "only a gateway's key"),
        (["authorize", "web.key", "--role", "client", "--name", "a/b"], "the name 'a/b' must be"),
        (["authorize", "web.key", "--role", "client", "--group", "a b"], "the group 'a b' must"),
        (["authorize", "web.key", "--role", "gateway", "--role", "admin"], "no other role"),
        (["authorize", "web.key", "--role", "client", "--data-dir", "x"], "keys new --broker"),
        (["new"], "name the pair"),
        (["new", "web", "--broker"], "--broker needs neither a name"),
        (["new", "a/b"], "'a/b' is not a name"),
        (["new", "x", "--dir", "nowhere"], "nowhere/x.key_secret cannot be made"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_in_one_line(broker: Cli, arguments: list[str], words: str) -> None:
    code, message = broker.error("keys", *arguments)
    assert 2 == code
    assert words in message


def test_a_broken_file_of_a_client_is_named(broker: Cli) -> None:
    ok(broker, "authorize", "web.key", "--role", "client")
    path = broker.folder / ".eventmq/keys/clients/web.key"
    path.write_text(path.read_text().replace("client", "king"))
    code, message = broker.error("keys", "list")
    assert 2 == code
    assert "clients/web.key: unknown role 'king'" in message


@pytest.mark.parametrize("name", ["new", "list", "authorize", "revoke"])
def test_every_command_explains_itself(cli: Cli, name: str) -> None:
    assert "Exit codes: 0 done" in " ".join(ok(cli, name, "--help").split())
