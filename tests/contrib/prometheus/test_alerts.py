"""The alert rules in deploy/: each is sound, fires when it should, and is in the runbook."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml

from eventmq.cli.program import program
from tests.support.prometheus import promtool

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(FILE.read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
RUNBOOK = (ROOT / "docs" / "howto" / "operate" / "runbook.rst").read_text("utf-8")
PROTOCOL = (ROOT / "docs" / "protocol.rst").read_text("utf-8")

Q = '{job="eventmq", instance="b1", queue="mail"'
T = '{job="eventmq", instance="b1", queue="mail", task="send"'
B = '{job="eventmq", instance="b1"'
SERVED = [f"eventmq_queue_workers{Q}}} 1x200", f"eventmq_queue_paused{Q}}} 0x200"]
UNPAUSED = f"eventmq_queue_paused{Q}}} 0x200"
WAITING = f'eventmq_queue_jobs{Q}, state="waiting"}} 5x200'

#: Alert -> series, in a sample a minute, and the minutes in which it does not fire yet and fires.
CASES: dict[str, tuple[Sequence[str], int, int]] = {
    "EventMQBrokerAway": ([f"up{B}}} 1x5 0x200", f"eventmq_up{B}}} 1x5 _x200"], 6, 8),
    "EventMQTargetDown": (['up{job="eventmq-workers", instance="w1"} 1x5 0x200'], 9, 12),
    "EventMQNoOwner": ([
        f'eventmq_broker_info{B}, role="active"}} 1x5 _x200',
        f'eventmq_broker_info{B}, role="standby"}} _x5 1x200',
        'eventmq_broker_info{job="eventmq", instance="b2", role="standby"} 1x200',
    ], 5, 12),
    "EventMQNoStandby": ([
        f"eventmq_store_dead_rows{B}}} 0x200",
        f'eventmq_broker_info{B}, role="active"}} 1x200',
    ], 14, 16),
    "EventMQStoreChangesHands": ([f"eventmq_store_epoch{B}}} 1x10 2+1x3 5x200"], 12, 20),
    "EventMQBrokerBusy": ([
        f"process_cpu_seconds_total{B}}} 0+57x200",
        f'eventmq_broker_info{B}, role="active"}} 1x200',
    ], 15, 22),
    "EventMQCommitsSlow": ([
        f'eventmq_commit_seconds_bucket{B}, le="0.5"}} 0+10x200',
        f'eventmq_commit_seconds_bucket{B}, le="1.0"}} 0+100x200',
        f'eventmq_commit_seconds_bucket{B}, le="+Inf"}} 0+100x200',
    ], 9, 13),
    "EventMQErrorsSent": ([f'eventmq_errors_total{B}, code="busy"}} 0+120x200'], 9, 13),
    "EventMQPeersDoNotRead": ([f"eventmq_broker_unsent_bytes{B}}} 2e8x200"], 4, 6),
    "EventMQNoWorkers": ([WAITING, f"eventmq_queue_workers{Q}}} 0x200", UNPAUSED], 4, 6),
    "EventMQBacklogOld": ([
        f"eventmq_queue_oldest_waiting_seconds{Q}}} 0+60x200", UNPAUSED,
    ], 18, 22),
    "EventMQQueuePaused": ([f"eventmq_queue_paused{Q}}} 1x200", WAITING], 59, 61),
    "EventMQSlotsExhausted": ([
        f'eventmq_worker_slots{B}, worker="w", state="used"}} 4x200',
        f'eventmq_worker_slots{B}, worker="w", state="total"}} 4x200',
        'eventmq_worker_slots{job="eventmq-workers", worker="w", state="total"} 4x200',
        WAITING,
    ], 29, 31),
    "EventMQWorkerOffline": ([f'eventmq_worker_online{B}, worker="w"}} 0x200'], 4, 6),
    "EventMQJobsFail": ([
        f'eventmq_jobs_total{T}, outcome="failed"}} 0+1x200',
        f'eventmq_jobs_total{T}, outcome="succeeded"}} 0+9x200',
    ], 9, 13),
    "EventMQJobsRetry": ([
        f"eventmq_job_retries_total{T}}} 0+20x200",
        f'eventmq_jobs_total{T}, outcome="succeeded"}} 0+9x200',
    ], 14, 22),
    "EventMQJobsExpire": ([f'eventmq_jobs_total{T}, outcome="expired"}} 0+1x200'], 9, 13),
    "EventMQDeadLetters": ([f'eventmq_queue_jobs{Q}, state="failed"}} 1001x200'], 9, 11),
    "EventMQFailedJobsForgotten": ([
        f'eventmq_broker_events_total{B}, name="failed_forgotten"}} 0x10 1x200',
    ], 10, 13),
    "EventMQWorkersLost": ([
        f'eventmq_broker_events_total{B}, name="lease_lost"}} 0x10 3x200',
    ], 10, 13),
    "EventMQDiskFull": ([
        f"eventmq_store_free_bytes{B}}} 9x5 1x200", f"eventmq_store_reserve_bytes{B}}} 2x200",
    ], 5, 7),
    "EventMQDiskFillsUp": ([
        f"eventmq_store_free_bytes{B}}} 300-1x200", f"eventmq_store_reserve_bytes{B}}} 100x200",
    ], 10, 70),
    "EventMQDeadRows": ([f"eventmq_store_dead_rows{B}}} 2e6x200"], 29, 31),
    "EventMQOldSnapshot": ([f"eventmq_store_oldest_snapshot_seconds{B}}} 0+60x200"], 18, 22),
}  # fmt: skip

#: Series with which nothing fires: two brokers, a worker, jobs that run, wait a little and fail now
#: and then; a queue that is paused, and one without jobs and workers.
QUIET = [
    *(f'up{{job="{job}", instance="i"}} 1x200' for job in ("eventmq", "eventmq-workers", "web")),
    f"eventmq_up{B}}} 1x200",
    f'eventmq_broker_info{B}, role="active"}} 1x200',
    'eventmq_broker_info{job="eventmq", instance="b2", role="standby"} 1x200',
    f"eventmq_store_dead_rows{B}}} 5000x200",
    f"eventmq_store_oldest_snapshot_seconds{B}}} 3x200",
    f"eventmq_store_epoch{B}}} 1x60 2x140",
    f"eventmq_store_free_bytes{B}}} 900x200",
    f"eventmq_store_reserve_bytes{B}}} 100x200",
    f"process_cpu_seconds_total{B}}} 0+30x200",
    'process_cpu_seconds_total{job="web", instance="i"} 0+60x200',
    f'eventmq_commit_seconds_bucket{B}, le="0.5"}} 0+100x200',
    f'eventmq_commit_seconds_bucket{B}, le="+Inf"}} 0+100x200',
    f'eventmq_errors_total{B}, code="busy"}} 0+1x200',
    f"eventmq_broker_unsent_bytes{B}}} 1000x200",
    WAITING,
    *SERVED,
    f"eventmq_queue_oldest_waiting_seconds{Q}}} 3x200",
    f'eventmq_queue_jobs{Q}, state="failed"}} 17x200',
    *(
        f"eventmq_queue_{each}"
        for each in (
            'jobs{job="eventmq", queue="old", state="waiting"} 7x30 0x170',
            'workers{job="eventmq", queue="old"} 0x200',
            'paused{job="eventmq", queue="old"} 1x200',
            'oldest_waiting_seconds{job="eventmq", queue="old"} 0+60x200',
            'jobs{job="eventmq", queue="idle", state="waiting"} 0x200',
            'workers{job="eventmq", queue="idle"} 0x200',
        )
    ),
    f'eventmq_worker_slots{B}, worker="w", state="used"}} 2x200',
    f'eventmq_worker_slots{B}, worker="w", state="total"}} 4x200',
    'eventmq_worker_online{job="eventmq-workers", worker="w"} 1x200',
    f'eventmq_jobs_total{T}, outcome="failed"}} 0+1x200',
    f'eventmq_jobs_total{T}, outcome="succeeded"}} 0+99x200',
    f'eventmq_jobs_total{T}, outcome="expired"}} 0x200',
    f"eventmq_job_retries_total{T}}} 0+9x200",
    f'eventmq_broker_events_total{B}, name="failed_forgotten"}} 0x200',
    f'eventmq_broker_events_total{B}, name="lease_lost"}} 0x200',
]


def test_promtool_accepts_the_files() -> None:
    """The example of a configuration names the rules, so both are read."""
    for arguments in (("check", "rules", str(FILE)), (
        "check", "config", str(FILE.with_name("prometheus.yml")),
    )):  # fmt: skip
        checked = promtool(*arguments)
        assert 0 == checked.returncode, checked.stdout
        assert f"{len(RULES)} rules found" in checked.stdout


def firing(alert: str, minute: int, *, expected: bool) -> dict[str, Any]:
    """Return what ``promtool test rules`` takes as a question."""
    name = f', alertname="{alert}"' if alert else ""
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if expected else []
    expression = f'count by (alertname) (ALERTS{{alertstate="firing"{name}}})'
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples}


def run(tmp_path: Path, tests: list[dict[str, Any]]) -> None:
    file = tmp_path / "alerts_test.yml"
    file.write_text(yaml.safe_dump(
        {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}
    ))  # fmt: skip
    ran = promtool("test", "rules", str(file))
    assert 0 == ran.returncode, ran.stdout


def case(series: Sequence[str], *expectations: dict[str, Any]) -> dict[str, Any]:
    matches = [re.fullmatch(r"(.*}) (.*)", each, re.DOTALL) for each in series]
    pairs = [{"series": each[1], "values": each[2]} for each in matches if each]
    assert len(series) == len(pairs)
    return {"interval": "1m", "input_series": pairs, "promql_expr_test": list(expectations)}


def test_every_alert_has_a_case() -> None:
    assert set(RULES) == set(CASES)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_its_time_is_up(tmp_path: Path, alert: str) -> None:
    """With the thresholds and times of the file, and not before."""
    series, before, after = CASES[alert]
    quiet, loud = firing(alert, before, expected=False), firing(alert, after, expected=True)
    run(tmp_path, [case(series, quiet, loud)])


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    quiet = [firing("", minute, expected=False) for minute in (1, 30, 59, 90, 150, 199)]
    run(tmp_path, [case(QUIET, *quiet)])


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_names_its_subject_and_its_runbook(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    notes = rule["annotations"]
    assert {"summary", "description", "runbook_url"} == set(notes)
    assert (
        f"https://docs.example.com/howto/operate/runbook.html#{alert.lower()}"
        == notes["runbook_url"]
    )


def test_the_runbook_has_each_alert_and_no_other() -> None:
    """A section each, whose anchor is its name in small letters, in the order of the rules."""
    titles = re.findall(r"^(EventMQ\w+)\n~+$", RUNBOOK, re.MULTILINE)
    assert list(RULES) == titles
    sections = re.split(r"^EventMQ\w+\n~+$", RUNBOOK, flags=re.MULTILINE)[1:]
    for title, text in zip(titles, sections, strict=True):
        assert "**Look**" in text, title
        assert "**Do**" in text, title


def section(alert: str) -> str:
    """Return the text of the section of an alert in the runbook."""
    _, _, rest = RUNBOOK.partition(f"\n{alert}\n~")
    return re.split(r"^EventMQ\w+\n~+$", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_error_codes_of_the_runbook_are_those_of_the_protocol() -> None:
    """The protocol page has a table of them, which its own tests compare with the code."""
    _, _, table = PROTOCOL.partition("\nCodes of ERROR\n")
    codes = set(re.findall(r"^``([a-z0-9-]+)`` ", table, re.MULTILINE))
    named = set(re.findall(r"``([\w-]+)``:", section("EventMQErrorsSent")))
    assert {"queue-full", "store-full", "not-allowed", "rate-limited"} <= named
    assert set() == named - codes


def command_lines() -> list[str]:
    """Return each command line of EventMQ in the runbook."""
    blocks = re.findall(r"^    \$ eventmq (.*?)(?:;.*)?$", RUNBOOK, re.MULTILINE)
    return sorted({*blocks, *re.findall(r"``eventmq (\w+ [^`]+)``", RUNBOOK)} - {"metrics"})


@pytest.mark.parametrize("line", command_lines())
def test_every_command_of_the_runbook_is_one(line: str) -> None:
    command, name, arguments = program, "eventmq", shlex.split(line)
    context = click.Context(program, info_name=name)
    while isinstance(command, click.Group) and arguments:
        if (inner := command.get_command(context, arguments[0])) is None:
            break
        name, command, arguments = arguments[0], inner, arguments[1:]  # type: ignore[assignment]
    assert command is not program, "there is no such command"
    command.make_context(name, arguments, parent=context)
