"""Grants: roles of commands and calls, owners of results, and the contents of key files."""

from __future__ import annotations

import pytest

from eventmq.broker.core import BrokerCore
from eventmq.broker.grants import OWN_JOBS, REMOTE, ROLES, Grant, call_roles, set_owner
from eventmq.broker.limits import Limits
from eventmq.errors import KeyFileError, ProtocolError
from eventmq.headers import parse_headers
from eventmq.wire import commands as c
from eventmq.wire.calls import ACTING, CALLS
from tests.support.broker_harness import FirstQueue, FirstWorker


def grant(*roles: str, key: str = "K", group: str = "", **more) -> Grant:
    return Grant(key, "tom", frozenset(roles), group, **more)


def may(check, *arguments) -> bool:
    try:
        check(*arguments)
    except ProtocolError as error:
        return {"not-allowed": False}[error.code]
    return True


#: Command -> roles.
TABLE = {
    c.Inform: "client worker scheduler gateway admin viewer broker",
    c.Heartbeat: "client worker scheduler gateway admin viewer broker",
    c.Hello: "client worker scheduler gateway admin viewer broker",
    c.Kbai: "client worker scheduler gateway admin viewer broker",
    c.Call: "client worker scheduler gateway admin viewer broker",
    c.Request: "client scheduler gateway admin",
    c.Publish: "client scheduler gateway admin",
    c.Schedule: "client scheduler gateway admin",
    c.Ready: "worker gateway",
    c.Reply: "worker gateway",
    c.Admin: "admin",
    c.Disconnect: "admin",
}


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("role", ROLES)
def test_a_command_is_for_its_roles(kind: type, role: str) -> None:
    assert (role in TABLE[kind].split()) == may(grant(role).check_command, kind)


def test_there_is_a_rule_for_every_command_of_the_broker() -> None:
    core = BrokerCore(Limits(), FirstWorker(), FirstQueue)
    for kind in core._handlers:
        grant("admin", "worker").check_command(kind)


#: Role of INFORM -> roles of the key.
INFORMS = {
    "client": "client worker scheduler gateway admin viewer broker",
    "worker": "worker gateway",
    "scheduler": "scheduler",
}


@pytest.mark.parametrize("informed", INFORMS)
@pytest.mark.parametrize("role", ROLES)
def test_a_peer_is_what_its_key_says(informed: str, role: str) -> None:
    assert (role in INFORMS[informed].split()) == may(grant(role).check_inform, informed, ["q"])


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_act_or_show_the_jobs_of_all_are_for_admins(name: str) -> None:
    acts = CALLS[name].role == "admin" or name in {
        "count", "failed", "failures", "jobs", "metrics", "status", "workers"
    }  # fmt: skip
    lease = name in {"schedules.lease", "schedules.advance"}
    held = name in {"begin", "inputs"}
    assert (not acts and not lease and not held) == may(grant("client").check_call, name)
    assert (not lease and not held) == may(grant("admin").check_call, name)
    assert (name == "ping" or held) == may(grant("worker").check_call, name)


VIEWED = {
    "count", "failed", "failures", "graph", "info", "jobs", "metrics", "ping", "queues",
    "schedules.list", "state", "status", "workers",
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_viewer_acts_on_nothing(name: str) -> None:
    """Events may have arguments, so it reads them only if it is shown arguments."""
    assert (name in VIEWED) == may(grant("viewer").check_call, name)
    shown = grant("viewer", show_arguments=True)
    assert (name in VIEWED | {"events.read"}) == may(shown.check_call, name)
    assert not (name in ACTING and may(shown.check_call, name))


def test_a_viewer_sees_jobs_of_all_and_their_arguments_only_if_it_may() -> None:
    """Another role of the same key does not get more by that."""
    both = grant("client", "viewer")
    assert both.sees("info", arguments=False)
    assert not both.sees("info", arguments=True)
    assert not both.sees("get", arguments=False)
    assert not both.sees("cancel", arguments=False)
    assert not both.owns("task:shop.add")
    assert grant("viewer", show_arguments=True).sees("info", arguments=True)
    assert not grant("client").sees("info", arguments=False)


def test_only_a_viewers_key_says_that_it_is_shown_arguments() -> None:
    with pytest.raises(KeyFileError, match="only a viewer's key"):
        grant("client", show_arguments=True).check()
    shown = grant("viewer", show_arguments=True)
    assert Grant.read("K", shown.metadata()) == shown
    assert Grant.parse(shown.format()) == shown


def test_calls_about_jobs_by_id_are_those_of_the_table() -> None:
    """A new call with ids must check owners, need an admin key, or need the lease of the job."""
    by_id = {n: a for n, s in CALLS.items() for a in s.arguments if a in {"id", "ids"}}
    assert OWN_JOBS == {
        n: a for n, a in by_id.items() if CALLS[n].role == "client" and call_roles(n) != {"admin"}
    }


def test_two_roles_may_what_either_may() -> None:
    both = grant("client", "worker")
    assert may(both.check_command, c.Request)
    assert may(both.check_command, c.Ready)
    assert not may(both.check_command, c.Disconnect)


# Owners


def test_a_key_owns_what_it_submitted() -> None:
    text = set_owner("task:shop.add", grant("client", key="A").owner)
    assert grant("client", key="A").owns(text)
    assert not grant("client", key="B").owns(text)
    assert grant("admin", key="B").owns(text)
    assert REMOTE.owns(text)


def test_a_group_owns_what_one_of_it_submitted() -> None:
    text = set_owner("", grant("client", key="A", group="shop").owner)
    assert grant("client", key="B", group="shop").owns(text)
    assert not grant("client", key="B", group="mail").owns(text)
    assert not grant("client", key="B").owns(text)


def test_a_job_without_owner_is_of_admins_only() -> None:
    """It was submitted when the broker had no keys."""
    assert not grant("client").owns("task:shop.add")
    assert grant("admin").owns("task:shop.add")


@pytest.mark.parametrize(
    "text",
    ["owner:B", "task:x,owner:B", "owner:B,task:x", " owner:B,owner:C", "owner", "owner:B/shop",
     "own%65r:B", "owner :B", "OWNER:B", "task:x,,owner:B,"],
)  # fmt: skip
def test_no_client_makes_itself_an_owner(text: str) -> None:
    owned = parse_headers(set_owner(text, "A"))
    assert "A" == owned.owner
    assert "" == parse_headers(set_owner(text, "")).owner
    assert not grant("client", key="B", group="shop").owns(set_owner(text, "A"))


def test_other_headers_stay_as_they_are() -> None:
    text = "task:a%2Cb,x-tenant:7,retry-count:3"
    assert f"{text},owner:A" == set_owner(text, "A")
    assert text == set_owner(text, "")


# Gateways


def test_a_gateway_has_the_queues_of_its_key_only() -> None:
    gateway = grant("gateway", serves=frozenset({"in"}), submits=frozenset({"out"}))
    assert may(gateway.check_inform, "worker", ["in"])
    assert not may(gateway.check_inform, "worker", ["in", "other"])
    assert may(gateway.check_submit, "out")
    assert not may(gateway.check_submit, "in")
    assert may(grant("client").check_submit, "any")


def test_a_gateway_that_names_no_queue_has_none() -> None:
    gateway = Grant.read("K", {"name": "g", "roles": "gateway"})
    assert not may(gateway.check_submit, "default")
    assert not may(gateway.check_inform, "worker", ["default"])


# Files


@pytest.mark.parametrize(
    "known",
    [
        grant("client"),
        grant("client", "worker", group="shop"),
        grant("gateway", serves=frozenset({"a,b", "c%"}), submits=frozenset({'"quoted"'})),
        grant("gateway", serves=frozenset(), submits=frozenset({"x"})),
    ],
)
def test_a_grant_is_read_as_it_was_written(known: Grant) -> None:
    assert known == Grant.read("K", known.metadata())


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"name": "tom"}, "no role; known are client, worker"),
        ({"name": "tom", "roles": "king"}, "unknown role 'king'"),
        ({"name": "", "roles": "client"}, "the name ''"),
        ({"name": "../x", "roles": "client"}, "the name"),
        ({"name": "a\nb", "roles": "client"}, "the name"),
        ({"name": "tom", "roles": "client", "group": "a/b"}, "the group"),
        ({"name": "tom", "roles": "client", "serves": "q"}, "only a gateway's key"),
        ({"name": "tom", "roles": "client,gateway"}, "no other role"),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(metadata, problem: str) -> None:
    with pytest.raises(KeyFileError, match=problem):
        Grant.read("K", metadata)


def test_without_keys_other_machines_do_not_administer() -> None:
    for name, spec in CALLS.items():
        assert (spec.role != "admin") == may(REMOTE.check_call, name)
    assert may(REMOTE.check_command, c.Request)
    assert may(REMOTE.check_command, c.Ready)
    assert not may(REMOTE.check_command, c.Disconnect)
    assert not may(REMOTE.check_command, c.Admin)
