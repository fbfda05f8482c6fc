"""The protocol page says what the code does: frames, headers, calls, codes, examples."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventmq.broker.core import PORTS
from eventmq.broker.limits import Limits
from eventmq.headers import Headers
from eventmq.job import JobState, OutcomeKind
from eventmq.settings.record import Settings
from eventmq.wire import calls, commands
from eventmq.wire.batches import (
    OutcomeRow,
    decode_batch,
    decode_chunk,
    decode_exceptions,
    decode_outcomes,
    unpack,
)
from eventmq.wire.features import EXTENSIONS, Features, Status
from eventmq.wire.results import MESSAGE_LIMIT, TRACEBACK_LIMIT, RemoteError, decode_error
from tests.support.broker_harness import Broker

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "protocol.rst").read_text(encoding="utf-8")
HEADINGS = re.compile(r"^(\S.*)\n([=~-])\2+$", re.MULTILINE)


def section(title: str) -> str:
    """Return the text of a section up to the next heading."""
    found = list(HEADINGS.finditer(PAGE))
    for this, following in zip(found, [*found[1:], None], strict=True):
        if this[1] == title:
            return PAGE[this.end() : following.start() if following else len(PAGE)]
    raise AssertionError(f"the page has no section {title!r}")


def tables(text: str) -> list[list[list[str]]]:
    """Return the simple tables of a text: rows of cells, the heading first."""
    found: list[list[list[str]]] = []
    rule = ""
    rules = 0
    for line in text.splitlines():
        if re.fullmatch(r"=+( +=+)+", line):
            if rules % 3 == 0:
                rule = line
                found.append([])
            rules += 1
            continue
        if rules % 3:
            spans = [m.span() for m in re.finditer("=+", rule)]
            ends = [*(start for start, _ in spans[1:]), None]
            cells = [line[a:b].strip() for (a, _), b in zip(spans, ends, strict=True)]
            if cells[0]:
                found[-1].append(cells)
            elif found[-1]:
                last = found[-1][-1]
                found[-1][-1] = [f"{a} {b}".strip() for a, b in zip(last, cells, strict=True)]
    return found


def names(text: str) -> list[str]:
    """Return the first column of the only table, without its heading and quotes."""
    [table] = tables(text)
    return [row[0].strip("`") for row in table[1:]]


# Commands


def commands_of(title: str) -> list[str]:
    return [word for word in re.split(r", | and ", title) if word.isupper()]


def documented() -> dict[str, list[tuple[int, int]]]:
    """Return command -> (least, most) frames of each of its forms."""
    found: dict[str, list[tuple[int, int]]] = {}
    for title in (m[1] for m in HEADINGS.finditer(PAGE)):
        text = section(title)
        words = commands_of(title)
        if not words or words[0] in {"FEATURES", "QUEUES"} or "(document" not in text.replace(
            "(deployed", "(document"
        ).replace("(extension", "(document").replace("(KBAI: ", "("):  # fmt: skip
            continue
        forms = [
            (4 + sum("(" not in row[0] for row in table[1:]), 4 + len(table) - 1)
            for table in tables(text)
            if table[0][0] == "Frame"
        ]
        for word in words:
            found[word] = forms or [(4, 4)]
    return found


def test_every_command_has_its_frames_in_the_page() -> None:
    """The numbers of the tables are those of the decoder."""
    real = {
        command.decode(): (least + 3, most + 3)
        for command, (least, most, _) in commands._DECODERS.items()
    }
    said = {
        command: (min(form[0] for form in forms), max(form[1] for form in forms))
        for command, forms in documented().items()
    }
    assert said == real


def test_frames_are_numbered_without_a_gap() -> None:
    for title in (m[1] for m in HEADINGS.finditer(PAGE)):
        for table in tables(section(title)):
            if table[0][0] == "Frame":
                numbers = [int(row[0].strip("()")) for row in table[1:]]
                first = 0 if title == "Messages" else 4
                assert numbers == list(range(first, first + len(numbers))), title


def test_every_port_is_in_the_page_with_what_it_takes() -> None:
    [table] = tables(section("Ports"))
    said = {row[0].strip("`"): row for row in table[1:]}
    defaults = Settings()
    for port, allowed in PORTS.items():
        option = "bind" if port == "main" else f"{port}-bind"
        row = said[option]
        assert getattr(defaults, option.replace("-", "_")).endswith(f":{row[1]}")
        if allowed is not None:
            words = set(re.findall(r"[A-Z_]{3,}", row[3]))
            expected = {kind.__name__.upper() for kind in allowed} - {"ADMIN"}
            expected |= {"KBYE"}
            if port == "admin":
                expected |= set(commands.ADMIN_COMMANDS)
            assert words == expected, port
    assert defaults.subscribe_bind.endswith(":" + said["subscribe-bind"][1])


def test_limits_are_in_the_page() -> None:
    limits = Limits()
    text = " ".join(PAGE.split())
    for said in (
        f"at most {limits.max_frames} frames",
        f"at most {limits.max_id} characters, a header field {limits.max_headers:,}",
        f"{limits.max_frame >> 20} MiB unless",
        f"at most {commands.MAX_TEXT >> 20} MiB",
        f"at most {limits.max_batch:,}.",
        f"There are at most {limits.max_inform_queues:,} queues",
        f"At most {limits.max_waits:,} ids can be waited for by one peer",
        f"and {limits.max_subscriptions:,} subscriptions",
        f"the message at most {MESSAGE_LIMIT:,} characters",
        f"about {TRACEBACK_LIMIT:,}",
        f"one step is worth {limits.priority_seconds:g}",
    ):
        assert said in text, said
    times = [row[0] for row in tables(section("Liveness"))[0][1:]]
    assert times == [
        f"{seconds:g} s"
        for seconds in (
            limits.heartbeat_interval, limits.lease_interval, limits.heartbeat_timeout,
            limits.grace,
        )
    ]  # fmt: skip


# Headers, FEATURES, STATUS


def default_of(value: object) -> str:
    words = {"": "empty", "None": "none", "False": "false"}
    return words.get(str(value), str(value).removesuffix(".0"))


def test_every_header_is_in_the_page_with_its_type_and_default() -> None:
    [table] = tables(section("Headers"))
    said = {row[0].strip("`"): (row[1], row[3]) for row in table[1:]}
    kinds = {"bool": "flag", "int": "integer", "float": "number", "str": "text"}
    real = {
        field.name if field.name == "run_count" else field.name.replace("_", "-"): (
            kinds[str(field.type).removesuffix(" | None")],
            default_of(field.default),
        )
        for field in fields(Headers)
        if field.name != "extra"
    }
    assert said == real


def test_headers_say_where_they_are_from() -> None:
    [table] = tables(section("Headers"))
    origin = {row[0].strip("`"): row[4] for row in table[1:]}
    assert {name for name, where in origin.items() if where == "document"} == {
        "reply-requested", "retry-count", "timeout", "guarantee", "nohaste",
    }  # fmt: skip
    assert {name for name, where in origin.items() if where == "deployed"} == {"run_count"}


def test_every_extension_and_pair_of_features_is_in_the_page() -> None:
    extensions, pairs = tables(section("FEATURES"))
    assert tuple(row[0].strip("`") for row in extensions[1:]) == EXTENSIONS
    said = {row[0].strip("`") for row in pairs[1:]}
    real = {field.name.replace("_", "-") for field in fields(Features)} - {"extensions"}
    assert said == real


def test_every_pair_of_status_is_in_the_page() -> None:
    assert set(names(section("STATUS"))) == {field.name for field in fields(Status)}


# Calls


def test_the_table_of_calls_is_made_from_the_code() -> None:
    said = PAGE.partition(".. calls-begin\n\n")[2].partition("\n.. calls-end")[0]
    assert said == calls.document()


def test_a_call_answers_with_the_keys_of_the_table(tmp_path: Path) -> None:
    """The broker and the table agree."""
    broker = Broker(tmp_path)
    job_id, _ = broker.submit()
    broker.worker()
    answers: dict[str, Any] = {
        "info": broker.call("info", id=job_id),
        "queues": broker.call("queues")[0],
        "workers": broker.call("workers")[0],
        "ping": broker.call("ping"),
        "status": broker.call("status"),
        "metrics": broker.call("metrics"),
    }
    broker.close()
    status = set(STATUS_KEYS)
    for name, answer in answers.items():
        words = re.match(r"(?:list of )?maps? with ([a-z_ ()]+)", calls.CALLS[name].result)
        assert words is not None
        keys = set(words[1].replace("(seconds ago)", "").partition(" and the keys")[0].split())
        assert keys == set(answer) - (status if name == "status" else set()), name


STATUS_KEYS = (
    "connected_workers",
    "connected_queues",
    "connected_schedulers",
    "inflight_messages_by_queue",
    "latency_messages_by_queue",
    "max_latency_messages_by_queue",
    "waiting_messages_by_queue",
    "processed_messages_by_queue",
    "processed_messages_by_worker",
)


def test_the_broker_has_a_handler_for_every_call_and_no_other(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    assert set(broker.core.state.calls) == set(calls.CALLS)
    broker.close()


def test_every_key_of_the_administration_is_in_the_page() -> None:
    said = re.findall(r"\b[a-z]+_[a-z_]+\b", section(
        "STATUS, ROUTER_SHOW_WORKERS and ROUTER_SHOW_SCHEDULERS"
    ))  # fmt: skip
    assert set(said) == {*STATUS_KEYS, "available_slots"}


# Codes


def codes_in(path: Path) -> Iterator[str]:
    """Yield the codes of ERROR in a source file, wherever one is written."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            found += [word.value for word in node.keywords if word.arg == "code"]
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in {"error", "Error"} and len(node.args) > 2:
                found.append(node.args[2])
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and path.parent.name == "broker":
            found.append(node.elts[0])  # (code, reason)
        elif isinstance(node, ast.Assign) and "code" in {
            getattr(t, "id", "") for t in node.targets
        }:
            found += [each for each in ast.walk(node.value) if isinstance(each, ast.expr)]
        for value in found:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def test_every_code_of_error_is_in_the_page_and_no_other() -> None:
    sources = [
        ROOT / "eventmq" / "headers.py",
        *(ROOT / "eventmq" / "broker").glob("*.py"),
        *(ROOT / "eventmq" / "wire").glob("*.py"),
    ]
    words = {code for path in sources for code in codes_in(path)}
    real = {word for word in words if re.fullmatch("[a-z0-9]+(-[a-z0-9]+)+", word)}
    real |= words & {"closing", "duplicate", "envelope", "version"}
    said = names(section("Codes of ERROR"))
    assert said == sorted(said)
    assert set(said) == real


# What shows it


def shown_by() -> list[str]:
    """Return the tests that the page names, in their order."""
    text = PAGE.partition(".. shown-by-begin\n")[2].partition(".. shown-by-end")[0]
    return re.findall(r"``(tests/[^`]+)``", text)


def test_every_test_that_the_page_names_is_there() -> None:
    """Whoever renames or removes one finds the rule that it shows."""
    named = shown_by()
    assert len(named) > 100
    by_file: dict[str, set[str]] = {}
    for text in named:
        where, _, name = text.partition("::")
        by_file.setdefault(where, set()).add(name)
    for where, names in by_file.items():
        tree = ast.parse((ROOT / where).read_text(encoding="utf-8"))
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert names <= found, f"{where} has no {', '.join(sorted(names - found))}"


def test_every_rule_of_the_page_names_a_test() -> None:
    text = PAGE.partition(".. shown-by-begin\n")[2].partition(".. shown-by-end")[0]
    rules = text.split("\n   * - ")[1:]
    headings = [rule for rule in rules if "Shown by" in rule]
    assert len(headings) == 2
    assert all("``tests/" in rule for rule in rules if rule not in headings)
    words = {rule.splitlines()[1].strip("- ") for rule in rules if rule.count("\n     - ") == 3}
    assert words == {"Word", "MUST", "SHOULD", "SHOULD NOT", "should", "MAY", "\\"}


# Examples


def example(name: str) -> bytes:
    _, _, rest = PAGE.partition(f".. example: {name}\n")
    found = re.search(r"\.\. code-block:: text\n\n((?:   [0-9a-f ]+\n)+)", rest)
    assert found is not None
    return bytes.fromhex(found[1])


HEADER_TEXT = "task:t,content-type:msgpack"


def test_the_example_of_a_batch_can_be_decoded() -> None:
    templates, jobs = decode_batch(example("batch"), 2)
    assert [tuple(template) for template in templates] == [("default", HEADER_TEXT)]
    assert [tuple(job) for job in jobs] == [
        ("a1", 0, b"\x92\x90\x80"), ("a2", 0, b"\x92\x91\x07\x80"),
    ]  # fmt: skip


def test_the_example_of_exceptions_can_be_decoded() -> None:
    assert decode_exceptions(example("exceptions")) == {1: ("too-large", "no")}


def test_the_example_of_a_chunk_can_be_decoded() -> None:
    body = example("chunk")
    index = decode_chunk(body)
    assert (index.queue, index.templates) == ("default", [HEADER_TEXT])
    assert [(e.id, e.delivery, e.attempt, e.timeout) for e in index.entries] == [
        ("a1", 1, 1, 5.0), ("a2", 3, 2, 5.0),
    ]  # fmt: skip
    assert [unpack(index.payload(body, e), "") for e in index.entries] == [[[], {}], [[7], {}]]


def test_the_example_of_outcomes_can_be_decoded() -> None:
    [outcome] = decode_outcomes(example("outcomes"))
    assert OutcomeRow(*outcome) == OutcomeRow(0, 0, 1795217419.5, 0.25, "msgpack", b"\x07", 0.0)


def test_the_example_of_an_error_can_be_decoded() -> None:
    assert decode_error(example("error")) == RemoteError("shop.Sold", "none left", "", ("book",))


def test_every_kind_of_outcome_is_in_the_page() -> None:
    fields_of, kinds = tables(section("Outcomes"))
    assert len(fields_of) - 2 == len(OutcomeRow._fields), "and the log behind them"
    assert [(int(row[0]), row[1]) for row in kinds[1:]] == [
        (kind.value, kind.name.lower().replace("_", " ")) for kind in OutcomeKind
    ]


def test_every_state_is_in_the_page() -> None:
    for state in JobState:
        assert f"``{state.value}``" in section("Calls")
