"""Settings: sources, validation, provenance, the reference page."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from eventmq.errors import SettingsError
from eventmq.rates import RATES
from eventmq.settings import Settings, describe, document, load_settings, misspelt_variables, record
from eventmq.settings.page import readers
from eventmq.settings.record import FIELDS, parse_buckets, show

#: What settings were called -> what they are called.
RENAMED = {
    "accept": "accept_content",
    "broker_key": "broker_key_file",
    "failed_age": "failed_ttl",
    "failed_bytes": "max_failed_bytes",
    "grace": "shutdown_grace",
    "key": "key_file",
    "liveness": "heartbeat_timeout",
    "max_abandoned": "max_abandoned_threads",
    "max_inputs": "max_input_bytes",
    "max_unread": "max_unsent_bytes",
    "max_unread_total": "max_total_unsent_bytes",
    "priority_step": "priority_seconds",
    "queue_routing": "queue_routing_strategies",
    "relaxed_interval": "fsync_interval",
    "routing": "routing_strategy",
    "unknown_queue": "legacy_queue_fallback",
    "window": "queue_window",
}

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.rst"


@pytest.fixture
def load(tmp_path):
    """Call it with the texts of files, variables and arguments."""

    def load(*, own="", project="", environ=None, **arguments):
        if own:
            (tmp_path / "eventmq.toml").write_text(own, encoding="utf-8")
        if project:
            (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
        return load_settings(arguments, directory=tmp_path, environ=environ or {})

    load.folder = tmp_path
    return load


def refusal(load, **sources):
    with pytest.raises(SettingsError) as caught:
        load(**sources)
    return str(caught.value)


def test_without_any_source_every_setting_has_its_default(load):
    settings = load()
    assert settings == Settings()
    assert {settings.source(name) for name in FIELDS} == {"default"}


def test_the_defaults_are_allowed_values(load):
    """The default can be set explicitly: as an argument, and as a variable."""
    listed = {row["env"]: row["value"] for row in describe(Settings())}
    by_variable = load(environ={name: text for name, text in listed.items() if text})
    by_argument = load(**{name: getattr(Settings(), name) for name in FIELDS})
    for name in FIELDS:
        assert getattr(by_variable, name) == getattr(by_argument, name) == FIELDS[name].default


def test_later_sources_win(load):
    """Defaults < pyproject.toml < eventmq.toml < environment < arguments, key by key."""
    project = "[tool.eventmq]\nshutdown_grace = 1\nqueue_window = 1\n"
    project += "heartbeat_timeout = 101\nstore = 'a'\n"
    own = "queue_window = 2\nheartbeat_timeout = 102\nstore = 'b'\n"
    environ = {"EVENTMQ_HEARTBEAT_TIMEOUT": "103", "EVENTMQ_STORE": "c"}
    settings = load(project=project, own=own, environ=environ, store="d")
    values = [
        (getattr(settings, n), settings.source(n))
        for n in ("shutdown_grace", "queue_window", "heartbeat_timeout")
    ]
    assert values == [
        (1.0, "pyproject.toml"),
        (2, "eventmq.toml"),
        (103.0, "EVENTMQ_HEARTBEAT_TIMEOUT"),
    ]
    assert (settings.store, settings.source("store")) == ("d", "argument")


def test_a_file_of_another_directory_is_not_read(load, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "eventmq.toml").write_text("shutdown_grace = 1", encoding="utf-8")
    assert load_settings({}, directory=tmp_path / "below", environ={}).shutdown_grace == 30.0


def test_an_argument_of_none_is_not_given(load):
    assert load(environ={"EVENTMQ_POOL": "threads"}, pool=None).pool == "threads"


def test_settings_cannot_be_changed(load):
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().shutdown_grace = 1.0


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        ({"EVENTMQ_BROKER": "tcp://a:1, ipc:///b"}, "broker", ("tcp://a:1", "ipc:///b")),
        ({"EVENTMQ_BROKER": "memory://"}, "broker", ("memory://",)),
        ({"EVENTMQ_BIND": "tcp://[::1]:0"}, "bind", "tcp://[::1]:0"),
        ({"EVENTMQ_BIND": "tcp://*:47291"}, "bind", "tcp://*:47291"),
        ({"EVENTMQ_ADMIN_BIND": ""}, "admin_bind", ""),
        ({"EVENTMQ_ADVERTISE": "tcp://b1:47291"}, "advertise", "tcp://b1:47291"),
        ({"EVENTMQ_ADVERTISE": "tcp://[::1]:47291"}, "advertise", "tcp://[::1]:47291"),
        ({"EVENTMQ_QUEUES": "email:40,default"}, "queues", ((40, "email"), (10, "default"))),
        ({"EVENTMQ_QUEUES": "a:b:3"}, "queues", ((3, "a:b"),)),
        (
            {"EVENTMQ_QUEUE_ROUTING_STRATEGIES": "a:sticky"},
            "queue_routing_strategies",
            (("a", "sticky"),),
        ),
        (
            {"EVENTMQ_QUEUE_LIMITS": "a:b:rate=5/s, concurrency=2,c:max_concurrency=1"},
            "queue_limits",
            (("a:b", "5/s", 2), ("c", "", 1)),
        ),
        ({"EVENTMQ_INSECURE": "yes"}, "insecure", True),
        ({"EVENTMQ_INSECURE": "0"}, "insecure", False),
        ({"EVENTMQ_MAX_FRAME": "65536"}, "max_frame", 65536),
        ({"EVENTMQ_SHUTDOWN_GRACE": "1.5"}, "shutdown_grace", 1.5),
        ({"EVENTMQ_DISABLED_PLUGINS": "a,b"}, "disabled_plugins", ("a", "b")),
    ],
)
def test_variables_are_read_by_the_type_of_the_setting(load, environ, name, value):
    assert getattr(load(environ=environ), name) == value


def test_a_file_may_hold_lists_and_pairs(load):
    settings = load(own="broker = ['tcp://a:1']\nqueues = [[40, 'email'], 'default:10']")
    assert settings.broker == ("tcp://a:1",)
    assert settings.queues == ((40, "email"), (10, "default"))


def test_a_table_of_a_file_is_pairs(load):
    settings = load(own='[queue_routing_strategies]\nreports = "sticky"\n')
    assert settings.queue_routing_strategies == (("reports", "sticky"),)
    shown = next(row for row in describe(settings) if row["name"] == "queue_routing_strategies")
    assert shown["value"] == "reports:sticky"


def test_limits_of_queues_are_a_table_of_tables(load):
    """Named as the options of tasks; ``EventMQ(queue_limits=...)`` takes the same."""
    own = '[queue_limits]\nmail = {rate_limit = "100/m", max_concurrency = 5}\nx = {rate = "1/s"}\n'
    settings = load(own=own)
    assert settings.queue_limits == (("mail", "100/m", 5), ("x", "1/s", 0))
    shown = next(row for row in describe(settings) if row["name"] == "queue_limits")
    assert shown["value"] == "mail:rate=100/m,concurrency=5,x:rate=1/s"
    assert load(environ={"EVENTMQ_QUEUE_LIMITS": shown["value"]}).queue_limits == (
        settings.queue_limits
    )
    assert load(queue_limits={"mail": {"max_concurrency": 1}}).queue_limits == (("mail", "", 1),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broker", ()),
        ("broker", "tcp://a"),
        ("broker", "tcp://a:0"),
        ("broker", "tcp://a:65536"),
        ("broker", "http://a:1"),
        ("broker", "ipc://"),
        ("bind", "memory://"),
        ("bind", ""),
        ("advertise", "10.0.0.5:47291"),
        ("advertise", "tcp://10.0.0.5:0"),
        ("advertise", "tcp://*:47291"),
        ("advertise", "tcp://0.0.0.0:47291"),
        ("advertise", "tcp://[::]:47291"),
        ("advertise", "memory://"),
        ("shutdown_grace", "soon"),
        ("shutdown_grace", float("nan")),
        ("shutdown_grace", float("inf")),
        ("shutdown_grace", -1),
        ("shutdown_grace", True),
        ("submit_timeout", 0),
        ("max_frame", 10**20),
        ("max_frame", 2**31),
        ("queue_window", 1.5),
        ("queue_window", 0),
        ("concurrency", -1),
        ("insecure", "perhaps"),
        ("queues", ()),
        ("queues", "a:0"),
        ("queues", "a:b"),
        ("queues", "a=3"),
        ("queues", "a,a"),
        ("queues", [["a", 10]]),
        ("queues", [[1, 2, 3]]),
        ("queues", [7]),
        ("queue_routing_strategies", "a"),
        ("queue_routing_strategies", "a:sticky,a:strict"),
        ("queue_routing_strategies", {"a": 7}),
        ("queue_routing_strategies", [7]),
        ("routes", "a"),
        ("routes", {"a": ""}),
        ("routes", "a:b,a:c"),
        ("routes", [("a", 1)]),
        ("queue_limits", "a"),
        ("queue_limits", "a:5"),
        ("queue_limits", "a:rate=often"),
        ("queue_limits", "a:rate=0/s"),
        ("queue_limits", "a:concurrency=0"),
        ("queue_limits", "a:concurrency=-1"),
        ("queue_limits", "a:speed=5/s"),
        ("queue_limits", "rate=5/s"),
        ("queue_limits", ":rate=5/s"),
        ("queue_limits", "a:rate=5/s,rate=6/s"),
        ("queue_limits", "a:rate=5/s,a:concurrency=1"),
        ("queue_limits", {"a": {}}),
        ("queue_limits", {"a": "5/s"}),
        ("queue_limits", {"a": 5}),
        ("queue_limits", {"a": None}),
        ("queue_limits", {"a": [1]}),
        ("queue_limits", {"a": {"rate_limit": 5}}),
        ("queue_limits", {"a": {"max_concurrency": True}}),
        ("queue_limits", {"a": {"max_concurrency": [1]}}),
        ("queue_limits", {"a": {"retries": 1}}),
        ("queue_limits", [7]),
        ("queue_limits", [["a", "5/s"]]),
        ("imports", [""]),
        ("imports", 7),
        ("store", ""),
        ("store", 7),
        ("durability", "eternal"),
        ("log_level", "loud"),
        ("legacy_queue_fallback", "drop"),
    ],
)
def test_a_value_that_is_not_allowed_names_key_source_value_and_what_is(load, name, value):
    message = refusal(load, **{name: value})
    allowed = FIELDS[name].allowed
    expected = f"setting {name!r} has the value {value!r} from argument; allowed is: {allowed}"
    assert message.removesuffix(f": a rate is {RATES}") == expected


@pytest.mark.parametrize(
    ("name", "value", "largest"),
    [
        ("max_queue_length", 10**20, 2**63 - 1),
        ("queue_window", 10**400, 2**63 - 1),
        ("queues", [(10**30, "mail")], 2**63 - 1),
        ("heartbeat_timeout", 1e300, 1_000_000_000),
        ("submit_timeout", 10**10, 1_000_000_000),
    ],
)
def test_a_number_that_nothing_takes_is_refused_with_the_largest(load, name, value, largest):
    message = refusal(load, **{name: value})
    assert message.startswith(f"setting {name!r} has the value {value!r} from argument; allowed")
    assert message.endswith(f": the largest number is {largest}")


def test_true_and_false_are_not_numbers(load):
    """In a variable, which has nothing but text, 1 and 0 are what people write."""
    for value in (1, 0, 1.0):
        assert refusal(load, insecure=value).endswith("allowed is: true or false")
    assert refusal(load, own="insecure = 1").endswith("eventmq.toml; allowed is: true or false")
    assert load(environ={"EVENTMQ_INSECURE": "1"}).insecure is True
    assert load(environ={"EVENTMQ_INSECURE": "0"}).insecure is False


@pytest.mark.parametrize("wrong", ["four", 4.5, True])
def test_a_number_of_jobs_is_a_whole_number(load, wrong):
    assert refusal(load, concurrency=wrong).endswith("allowed is: a whole number from 0")


@pytest.mark.parametrize(
    "url",
    [
        "tcp://user:secret@host:0",
        "tcp://user:with/secret/slashes@host:1",
        "tcp://:secret@with@signs@host:1",
        "redis://host:6379/0?password=secret&db=1",
        "redis://host?ssl=1&Auth_Token=secret",
    ],
)
def test_a_password_in_a_value_is_not_shown(load, url):
    for value in (url, [url, "tcp://a"], f"{url},tcp://a"):
        message = refusal(load, broker=value)
        assert "secret" not in message
        assert "***" in message
    assert "secret" not in str(describe(load(result_backend=url)))


def test_the_host_of_a_hidden_password_and_other_addresses_are_shown(load):
    message = refusal(load, broker=["tcp://user:secret@host:0", "tcp://other:0"])
    assert "['tcp://user:***@host:0', 'tcp://other:0']" in message
    rows = describe(load(result_backend="redis://user:secret@host"))
    assert "redis://user:***@host" in {row["value"] for row in rows}


def test_an_unknown_argument_names_the_nearest_known_one(load):
    message = refusal(load, serialiser="json")
    assert message == "unknown setting 'serialiser' from argument; did you mean 'serializer'?"


def test_an_unknown_key_of_a_file_is_an_error(load):
    assert "from pyproject.toml" in refusal(load, project="[tool.eventmq]\nbrokr = 'x'")
    assert "from eventmq.toml" in refusal(load, own="brokr = 'x'")


def test_an_argument_of_the_app_in_a_file_is_told_from_a_setting(load):
    message = refusal(load, own="task_defaults = {keep_logs = true}")
    assert "unknown setting 'task_defaults' from eventmq.toml" in message
    assert 'argument of the app: EventMQ("shop", task_defaults={"keep_logs": True})' in message


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_an_error_that_tells_the_new_one(load, old, new):
    """It may be an argument, a key of either file, or a variable, with any value."""
    assert new in FIELDS
    expected = f"it is called {new!r} now"
    message = f"unknown setting {old!r} from argument: {expected}"
    assert message == refusal(load, **{old: FIELDS[new].default})
    message = f"unknown setting {old!r} from pyproject.toml: {expected}"
    assert message == refusal(load, project=f"[tool.eventmq]\n{old} = 1")
    (load.folder / "pyproject.toml").unlink()
    message = f"unknown setting {old!r} from eventmq.toml: {expected}"
    assert message == refusal(load, own=f"{old} = 1")
    (load.folder / "eventmq.toml").unlink()
    variable, instead = f"EVENTMQ_{old.upper()}", f"EVENTMQ_{new.upper()}"
    message = f"unknown setting {old!r} from {variable}: {expected}; set {instead} instead"
    assert message == refusal(load, environ={variable: "1"})


def test_no_other_name_is_an_old_one():
    assert RENAMED == record.RENAMED


def test_a_new_name_does_not_hide_an_old_one(load):
    """Whoever sets both would not know which one holds."""
    message = refusal(load, environ={"EVENTMQ_GRACE": "1"}, shutdown_grace=2.0)
    assert "'shutdown_grace'" in message


def test_a_file_that_is_no_toml_is_named(load):
    assert "eventmq.toml cannot be read" in refusal(load, own="broker")


def test_a_table_where_there_must_be_one_is_checked(load):
    assert "must be a table" in refusal(load, own="plugins = 3")
    assert "must be a table" in refusal(load, own="eventmq = 3")
    assert "plugin 'dill'" in refusal(load, own="[plugins]\ndill = 3")
    assert "must be a table" in refusal(load, project="tool = 3")


def test_the_serializer_must_be_accepted(load):
    """Naming a serializer never widens what is decoded: dill stays out unless it is let in."""
    message = refusal(load, serializer="dill")
    assert "accept_content (msgpack, json)" in message
    assert load(serializer="dill", accept_content=["dill"]).serializer == "dill"


def test_the_heartbeat_timeout_must_be_longer_than_the_heartbeat(load):
    assert "heartbeat_interval (3 s)" in refusal(load, heartbeat_timeout=3)


def test_options_of_plugins_come_from_files_and_arguments(load):
    """``[eventmq.plugins.NAME]``, also as ``[plugins.NAME]``; arguments win option by option."""
    settings = load(
        project="[tool.eventmq.plugins.a]\nx = 1\ny = 1",
        own="[eventmq.plugins.a]\ny = 2\nz = 2\n[eventmq.plugins.b]\nx = 1",
        plugin_options={"a": {"z": 3}},
    )
    assert settings.plugin_options == {"a": {"x": 1, "y": 2, "z": 3}, "b": {"x": 1}}


def test_the_description_has_the_options_of_plugins_and_hides_secrets(load):
    own = '[eventmq.plugins.a]\nurl = "x://u:hush@h"\nsize = 2\nSigning_Key = "hush"\nfiles = ["b"]'
    rows = [row for row in describe(load(own=own)) if row["name"].startswith("plugins.")]
    assert [(row["name"], row["value"], row["type"]) for row in rows] == [
        ("plugins.a.Signing_Key", "***", "str"),
        ("plugins.a.files", "['b']", "list"),
        ("plugins.a.size", "2", "int"),
        ("plugins.a.url", "x://u:***@h", "str"),
    ]
    assert {"eventmq.toml"} == {row["source"] for row in rows}
    assert {frozenset(row) for row in describe(load(own=own))} == {frozenset(rows[0])}


def test_the_first_route_that_fits_is_the_queue_of_a_task(load):
    table = '[routes]\n"shop.mail.*" = "mail"\n"shop.*" = "shop"\n'
    for settings in (
        load(own=table),
        load(environ={"EVENTMQ_ROUTES": "shop.mail.*:mail, shop.*:shop"}),
        load(routes={"shop.mail.*": "mail", "shop.*": "shop"}),
    ):
        assert settings.queue_of("shop.mail.send") == "mail"
        assert settings.queue_of("shop.total") == "shop"
        assert settings.queue_of("Shop.total") == "default"
    shown = next(row for row in describe(settings) if row["name"] == "routes")
    assert shown["value"] == "shop.mail.*:mail,shop.*:shop"


@pytest.mark.parametrize(
    ("variable", "level"),
    [
        ("EVENTMQ_BROKRE", logging.WARNING),
        ("EVENTMQ_BROKERS", logging.WARNING),
        ("EVENTMQ_Shutdown_grace", logging.WARNING),
        ("EVENTMQ_DASHBOARD_COLOUR", logging.DEBUG),
    ],
)
def test_an_unknown_variable_is_told_of_and_ignored(load, caplog, variable, level):
    """A warning within two letters of a known one, else debug: others use the prefix too."""
    with caplog.at_level(logging.DEBUG, "eventmq"):
        assert load(environ={variable: "x"}) == Settings()
    assert [record.levelno for record in caplog.records] == [level]
    assert variable in caplog.text


def test_misspelt_variables_are_named_with_the_nearest_known_one():
    environ = dict.fromkeys(
        ["EVENTMQ_BROKRE", "EVENTMQ_SHUTDOWN_GRACE", "EVENTMQ_TEST_GRACEX", "X"], "1"
    )
    assert misspelt_variables(environ) == [
        "environment variable EVENTMQ_BROKRE is unknown; did you mean EVENTMQ_BROKER?"
    ]


def test_variables_of_tests_are_ignored(load, caplog):
    with caplog.at_level(logging.DEBUG, "eventmq"):
        load(environ={"EVENTMQ_TEST_BROKER": "x", "BROKER": "x"})
    assert caplog.records == []


def test_the_environment_of_the_process_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("EVENTMQ_SHUTDOWN_GRACE", "7")
    assert load_settings({}, directory=tmp_path).shutdown_grace == 7.0


def test_the_description_tells_all_of_each_setting(load):
    rows = {row["name"]: row for row in describe(load(environ={"EVENTMQ_SHUTDOWN_GRACE": "7"}))}
    assert list(rows) == list(FIELDS)
    assert rows["shutdown_grace"] == {
        "name": "shutdown_grace",
        "value": "7.0",
        "source": "EVENTMQ_SHUTDOWN_GRACE",
        "type": "float",
        "unit": "s",
        "default": "30.0",
        "env": "EVENTMQ_SHUTDOWN_GRACE",
    }


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_documented(name):
    setting = FIELDS[name]
    assert setting.doc.endswith((".", "?"))
    assert setting.allowed
    assert setting.kind is not float or setting.unit


def test_the_reference_page_is_up_to_date():
    """Regenerate it: python -c "import eventmq.settings as s; print(s.document(), end='')"."""
    assert PAGE.read_text(encoding="utf-8") == document()


def test_importing_settings_loads_no_parser_of_files():
    code = "import sys, eventmq.settings; print({'tomllib', 'tomli', 'difflib'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert shown.stdout == "set()\n"


def test_settings_inside_a_table_of_their_own_file_are_told_where_to_stand(load):
    """``[eventmq]`` of ``eventmq.toml`` holds options of plugins only."""
    with pytest.raises(SettingsError, match=r"'pool' is in the table .* at the top"):
        load(own='[eventmq]\npool = "threads"')


def test_the_page_says_which_process_reads_a_setting():
    """Derived from the code, so that it stays true; a setting without readers is a mistake."""
    read_by = readers()
    assert not [name for name, processes in read_by.items() if not processes]
    assert read_by["result_timeout"] == ["client"]
    assert read_by["middleware"] == ["client", "worker"]
    assert read_by["worker_bind"] == ["broker"]
    assert read_by["heartbeat_timeout"][:3] == ["client", "worker", "broker"]


# Metrics


def test_buckets_are_read_from_text_and_tables(load):
    """The patterns are of queue/task; ``eventmq settings`` shows the text."""
    pairs = (("reports/*", "1 60 600"), ("*/shop.send", "0.1 1"))
    table = '[metrics_run_buckets]\n"reports/*" = "1 60 600"\n"*/shop.send" = "0.1 1"\n'
    assert load(own=table).metrics_run_buckets == pairs
    text = "reports/*:1 60 600,*/shop.send:0.1 1"
    settings = load(environ={"EVENTMQ_METRICS_RUN_BUCKETS": text})
    assert (settings.metrics_run_buckets, text) == (pairs, show(pairs))
    assert parse_buckets("0.1 1") == (0.1, 1.0)


@pytest.mark.parametrize(
    "bounds", ["", "x", "2 1", "1 1", "0 1", "-1", "nan", "1 inf", " ".join(map(str, range(1, 52)))]
)
def test_buckets_that_are_none_are_refused(load, bounds):
    with pytest.raises(SettingsError, match="ascending numbers above 0"):
        load(metrics_wait_buckets=[("*/*", bounds)])


@pytest.mark.parametrize("address", ["9472", "host:", "host:65536", "http://host:1"])
def test_an_address_of_metrics_is_host_and_port(load, address):
    with pytest.raises(SettingsError, match="host:port"):
        load(metrics_bind=address)
    assert load(metrics_bind="[::1]:0").metrics_bind == "[::1]:0"
