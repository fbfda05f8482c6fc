"""Key files: their modes, and the errors for unusable files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventmq.app.wiring import keys_of
from eventmq.errors import KeyFileError, SettingsError
from eventmq.settings import load_settings
from eventmq.wire.curve import (
    Certificate,
    client_keys,
    read_public,
    read_secret,
    write_new,
    write_over,
)
from eventmq.wire.sockets import new_keys

if TYPE_CHECKING:
    from pathlib import Path


def new_pair(folder: Path, name: str) -> tuple[Path, Path]:
    public, secret = (key.decode() for key in new_keys())
    paths = folder / f"{name}.key", folder / f"{name}.key_secret"
    write_new(paths[0], Certificate(public), "public")
    write_new(paths[1], Certificate(public, secret), "secret")
    return paths


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return new_pair(tmp_path, "a")


def test_a_secret_key_is_its_owners_only(pair: tuple[Path, Path]) -> None:
    assert 0o600 == pair[1].stat().st_mode & 0o777
    assert read_secret(pair[1]).public == read_public(pair[0]).public


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601, 0o620])
def test_a_secret_key_that_others_can_use_is_refused(pair: tuple[Path, Path], mode: int) -> None:
    pair[1].chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_secret(pair[1])


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_secret_key_may_belong_to_a_group_of_services(pair, mode: int) -> None:
    pair[1].chmod(mode)
    assert read_secret(pair[1]).secret


def test_no_key_is_overwritten(pair: tuple[Path, Path]) -> None:
    before = pair[1].read_bytes()
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_new(pair[1], read_secret(pair[1]), "again")
    assert before == pair[1].read_bytes()


def test_a_public_file_is_replaced_as_a_whole(pair: tuple[Path, Path]) -> None:
    write_over(pair[0], Certificate(read_public(pair[0]).public, "", {"name": "b"}), "again")
    assert {"name": "b"} == read_public(pair[0]).metadata
    assert {"a.key", "a.key_secret"} == {path.name for path in pair[0].parent.iterdir()}


def test_the_halves_are_not_confused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(KeyFileError, match="holds a secret key"):
        read_public(pair[1])
    with pytest.raises(KeyFileError, match="holds no secret key"):
        read_secret(pair[0])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 100_000, b"hello\nworld ="])
def test_what_is_no_key_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.key"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=r"odd\.key"):
        read_public(path)


def test_a_file_that_is_not_there_is_named(pair: tuple[Path, Path]) -> None:
    with pytest.raises(KeyFileError, match=r"nowhere\.key cannot be read: No such file"):
        client_keys(["nowhere.key"], str(pair[1]))


def test_settings_name_key_files(pair: tuple[Path, Path]) -> None:
    settings = load_settings(
        {"broker_key_file": str(pair[0]), "key_file": str(pair[1])}, environ={}
    )
    keys = keys_of(settings)
    assert keys is not None
    assert keys.broker == keys.public == read_public(pair[0]).public.encode()
    assert keys_of(load_settings({}, environ={})) is None
    assert keys.of(0) == keys.of(1) == keys


def test_each_broker_can_have_a_key_of_its_own(pair: tuple[Path, Path], tmp_path: Path) -> None:
    public, secret = new_pair(tmp_path, "second")
    settings = load_settings(
        {
            "broker": ["tcp://a:1", "tcp://b:1"],
            "broker_key_file": f"{pair[0]},{public}",
            "key_file": str(secret),
        },
        environ={},
    )
    keys = keys_of(settings)
    assert keys is not None
    assert keys.of(0).broker == read_public(pair[0]).public.encode()
    assert keys.of(1).broker == read_public(public).public.encode()
    assert keys.of(0).secret == keys.of(1).secret


@pytest.mark.parametrize("files", ["a.key,b.key", "a.key,b.key,c.key,d.key"])
def test_there_is_one_broker_key_or_one_for_each_address(files: str) -> None:
    brokers = "tcp://a:1,tcp://b:1,tcp://c:1"
    count = files.count(",") + 1
    with pytest.raises(SettingsError, match=f"names {count} files for 3 addresses in broker; name"):
        load_settings({"broker": brokers, "broker_key_file": files}, environ={})


@pytest.mark.parametrize("name", ["key_file", "broker_key_file"])
def test_half_of_the_settings_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError, match=f"'{name}' from argument goes with .*: set both"):
        keys_of(load_settings({name: "x"}, environ={}))
