"""The registry: names, provenance, collisions, lookups."""

from __future__ import annotations

import pytest

from eventmq import hookspecs
from eventmq.errors import HookError, PluginCollision, PluginNotFound
from eventmq.registry.names import KINDS, QUEUE_STORE, SERIALIZER, Registry, scheme


def make(context):
    return object()


def test_a_factory_is_found_by_its_name_with_its_plugin():
    registry = Registry(SERIALIZER)
    registry.add("json", make, "serializers.json")
    assert registry.find("json") == ("json", make, "serializers.json")
    assert [provided.name for provided in registry] == ["json"]


def test_a_url_is_found_by_its_scheme():
    registry = Registry(QUEUE_STORE)
    registry.add("postgresql", make, "stores")
    assert registry.find("postgresql://host/db").name == "postgresql"
    assert [scheme("redis+tls://h"), scheme("sqlite")] == ["redis+tls", "sqlite"]


def test_a_collision_names_the_other_plugin():
    registry = Registry(SERIALIZER)
    registry.add("json", make, "first")
    with pytest.raises(PluginCollision, match="'json' is provided by plugin 'first' too"):
        registry.add("json", make, "second")
    assert registry.find("json").plugin == "first"


def test_an_unknown_name_gets_the_nearest_one():
    registry = Registry(SERIALIZER)
    registry.add("msgpack", make, "a")
    with pytest.raises(PluginNotFound) as caught:
        registry.find("msgpak")
    assert str(caught.value) == "no serializer is called 'msgpak'; did you mean 'msgpack'?"


def test_a_name_like_no_other_gets_the_list():
    registry = Registry(SERIALIZER)
    registry.add("msgpack", make, "a")
    registry.add("json", make, "a")
    with pytest.raises(PluginNotFound, match="'yaml'; known are: json, msgpack"):
        registry.find("yaml")
    with pytest.raises(PluginNotFound, match="known are: none"):
        Registry(QUEUE_STORE).find("x")


@pytest.mark.parametrize("name", ["", "Json", "a b", "a://b", "-a", "/a", "a/", "a/b/c"])
def test_a_name_that_could_not_be_chosen_is_refused(name):
    with pytest.raises(HookError, match="small letters"):
        Registry(SERIALIZER).add(name, make, "a")


def test_a_content_type_is_a_name():
    registry = Registry(SERIALIZER)
    registry.add("application/json", make, "a")
    assert registry.find("application/json").name == "application/json"


def test_a_factory_must_be_callable():
    with pytest.raises(HookError, match="cannot be called, it is dict"):
        Registry(SERIALIZER).add("json", {}, "a")


def test_there_is_a_kind_for_every_registration_hook():
    acting = {"eventmq_configure", "eventmq_add_commands", "eventmq_job_event"}
    acting |= {"eventmq_serve_metrics"}
    acting |= {"eventmq_command_options", "eventmq_task_options"}
    specs = {name for name in vars(hookspecs) if name.startswith("eventmq_")}
    assert {kind.hook for kind in KINDS} == specs - acting
