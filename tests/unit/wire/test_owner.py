"""The extension ``owner``: who owns a shared store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventmq.errors import ProtocolError
from eventmq.wire.commands import Error, decode
from eventmq.wire.features import EXTENSIONS, Features, format_waiting, parse_waiting
from eventmq.wire.owner import ACTIVE, STANDBY, OwnerInfo, Owners, no_owner, parse_epoch

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.rst").read_text(encoding="utf-8")

#: A key with characters that have a meaning in FEATURES.
KEY = "+,:%" + "k" * 36

OWNER = OwnerInfo(7, ACTIVE, "tcp://10.0.0.5:47291", KEY, "s1")


def test_a_broker_that_is_none_is_not_named_as_the_owner() -> None:
    """It was the owner before, and no later report is known."""
    assert OWNER.address_beside("tcp://10.0.0.6:47291") == OWNER.address
    assert OWNER.address_beside(OWNER.address) == ""


def test_an_ack_says_who_owns_the_store() -> None:
    """As a pair in the place of the extension's name."""
    features = Features(epoch=7, store="s1", owner=OWNER)
    text = features.format()
    key = "%2B%2C%3A%25" + "k" * 36
    assert text.endswith(f",epoch:7,owner:7+active+tcp%3A//10.0.0.5%3A47291+{key}+s1")
    assert text.split(",").count("owner") == 0
    assert Features.parse(text) == features


def test_a_peer_that_names_the_extension_says_no_owner() -> None:
    features = Features.parse(Features().format())
    assert "owner" in features.extensions
    assert features.owner is None


def test_a_peer_that_does_not_know_the_extension_passes_it_over() -> None:
    """It reads by an older table of extensions, and ignores unknown names."""
    old = tuple(name for name in EXTENSIONS if name != "owner")
    text = Features(epoch=7, owner=OWNER).format()
    read = Features.parse(",".join(i for i in text.split(",") if not i.startswith("owner")))
    assert read == Features(extensions=old, epoch=7)
    assert parse_waiting(f"waiting:3,{OWNER.format()}") == 3


@pytest.mark.parametrize("waiting", [None, 0, 12])
def test_a_heartbeat_says_it_beside_the_waiting_jobs(waiting: int | None) -> None:
    text = format_waiting(waiting, OWNER)
    assert text is not None
    assert OwnerInfo.of_heartbeat(text) == OWNER
    assert parse_waiting(text) == waiting


def test_a_heartbeat_without_a_shared_store_is_as_before() -> None:
    assert format_waiting(None) is None
    assert format_waiting(5) == "waiting:5"
    assert OwnerInfo.of_heartbeat("waiting:5") is None


def test_further_parts_are_passed_over() -> None:
    """Parts of a later version."""
    assert OwnerInfo.parse("7+standby+++s1+shard4") == OwnerInfo(7, STANDBY, store_id="s1")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7", "owner is '7'; allowed is EPOCH+ROLE+ADDRESS+KEY+STORE"),
        ("7+active+a+", "owner is '7+active+a+'; allowed is EPOCH+ROLE+ADDRESS+KEY+STORE"),
        ("x+active+++", "epoch is 'x'; allowed is a whole number from 0"),
        ("-1+active+++", "epoch is '-1'; allowed is a whole number from 0"),
        ("1+king+++", "the role of a broker is active or standby, not 'king'"),
        ("1+active++abc+", "the key of an owner has 40 characters of Z85, or none"),
        (
            "1+active+" + "a" * 256 + "++",
            "address and store of an owner have at most 255 characters",
        ),
        (
            "1+active+++" + "a" * 256,
            "address and store of an owner have at most 255 characters",
        ),
    ],
)
def test_an_owner_that_is_malformed_is_refused(value: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Features.parse(f"error,owner:{value}")
    assert (caught.value.code, str(caught.value)) == ("bad-features", message)


@pytest.mark.parametrize(("text", "epoch"), [("", 0), ("7", 7), ("9" * 15, 10**15 - 1)])
def test_an_epoch_is_a_whole_number(text: str, epoch: int) -> None:
    """Without one the store is not shared."""
    assert parse_epoch(text) == epoch


@pytest.mark.parametrize("text", ["x", "-1", "1.0", "²", "9" * 16, "1+2"])
def test_an_epoch_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="allowed is a whole number from 0"):
        parse_epoch(text)


def test_an_error_says_where_the_owner_is() -> None:
    error = decode(no_owner("b7.1", "x", OwnerInfo(7, STANDBY, "tcp://h:1")).frames())
    assert isinstance(error, Error)
    assert (error.request, error.code) == ("x", "no-owner")
    assert error.text.endswith("the owner is tcp://h:1: send it there, or again later")
    unknown = no_owner("b0.1", "x", OwnerInfo(0, STANDBY))
    assert "no owner is known now" in unknown.text


def test_the_example_of_the_page_is_read() -> None:
    match = re.search(r"^   (owner:\S+)$", PAGE, re.MULTILINE)
    assert match is not None
    assert OwnerInfo.of_heartbeat(match[1]) == OwnerInfo(
        7, STANDBY, "tcp://10.0.0.5:47291", "", "s1"
    )


# Reports of several brokers


def test_a_peer_takes_the_highest_epoch_for_that_of_the_owner() -> None:
    """Whichever broker reports it, and whatever lower ones are reported later."""
    owners = Owners()
    before = OwnerInfo(7, ACTIVE, "tcp://a:1", "", "s1")
    assert owners.register(before) == before
    assert owners.owns(before)
    news = OwnerInfo(8, STANDBY, "tcp://b:1", "", "s1")
    assert owners.register(news) == news
    assert not owners.owns(before)
    assert owners.register(before) == news
    assert not owners.owns(news)
    assert owners.owns(news._replace(role=ACTIVE))
    assert owners.owns(news._replace(role=ACTIVE, epoch=9))


def test_a_peer_learns_the_address_of_an_owner_that_was_known_without() -> None:
    owners = Owners()
    assert owners.register(OwnerInfo(7, STANDBY, store_id="s1")).address == ""
    known = OwnerInfo(7, STANDBY, "tcp://a:1", "", "s1")
    assert owners.register(known) == known
    assert owners.register(OwnerInfo(7, STANDBY, store_id="s1")) == known


def test_epochs_of_different_stores_are_not_compared() -> None:
    owners = Owners()
    owners.register(OwnerInfo(7, ACTIVE, "tcp://a:1", "", "s1"))
    assert owners.owns(OwnerInfo(1, ACTIVE, "tcp://b:1", "", "s2"))


def test_a_broker_with_a_store_of_its_own_owns_it() -> None:
    assert Owners().owns(None)


def test_the_stores_that_a_peer_remembers_are_bounded() -> None:
    owners = Owners()
    for number in range(1500):
        owners.register(OwnerInfo(2, ACTIVE, "tcp://a:1", "", f"s{number}"))
    old = OwnerInfo(1, ACTIVE, "tcp://b:1", "", "")
    owns = [owners.owns(old._replace(store_id=f"s{number}")) for number in range(1500)]
    assert owns == [True] * 500 + [False] * 1000
