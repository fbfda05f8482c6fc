"""A real Prometheus scrapes brokers and workers: queries of deploy/ have answers, alerts fire."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import yaml

from eventmq import EventMQ
from eventmq.errors import EventMQError
from tests.contrib.prometheus.test_alerts import FILE, RULES
from tests.support.prometheus import Prometheus, program
from tests.support.shell import Shell, free_port
from tests.support.system import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.shell import Program

pytestmark = pytest.mark.timeout(240)

DASHBOARD = json.loads(
    (Path(__file__).parents[3] / "deploy" / "grafana" / "eventmq.json").read_text("utf-8")
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]

#: Alert -> its threshold, and one that is reached here within seconds; "" to leave it as it is.
PROVOKED = {
    "EventMQStoreChangesHands": ("> 3", "> 0"),
    "EventMQBrokerBusy": ("> 0.9", "> 0"),
    "EventMQCommitsSlow": ("> 0.5", "> 0"),
    "EventMQErrorsSent": ("> 1", "> 0"),
    "EventMQNoWorkers": ("", ""),
    "EventMQBacklogOld": ("> 900", "> 1"),
    "EventMQQueuePaused": ("", ""),
    "EventMQJobsFail": ("", ""),
    "EventMQJobsRetry": ("", ""),
    "EventMQJobsExpire": ("", ""),
    "EventMQDeadLetters": ("> 1000", "> 0"),
    "EventMQDeadRows": ("> 1e6", ">= 0"),
    "EventMQOldSnapshot": ("> 900", "> 0"),
    "EventMQFailedJobsForgotten": ("", ""),
    "EventMQDiskFull": ("", ""),
    "EventMQDiskFillsUp": ("", ""),
    "EventMQSlotsExhausted": ("", ""),
    "EventMQWorkersLost": ("", ""),
    "EventMQWorkerOffline": ("", ""),
    "EventMQBrokerAway": ("", ""),
    "EventMQTargetDown": ("", ""),
    "EventMQNoStandby": ("", ""),
}

#: Those that only ``promtool`` fires (test_alerts.py), and why.
NOT_HERE = {
    "EventMQNoOwner": "wants a PostgreSQL that goes away; the tests share one",
    "EventMQPeersDoNotRead": "wants 128 MiB that nobody reads",
}

#: Fire last, since they need processes to end.
AT_THE_END = {
    "EventMQWorkersLost", "EventMQWorkerOffline", "EventMQBrokerAway", "EventMQTargetDown",
    "EventMQNoStandby",
}  # fmt: skip

SHOP = """
import time

from eventmq import EventMQ, fixed

app = EventMQ("shop")


@app.task
def good():
    pass


@app.task
def bad():
    raise ValueError


@app.task(retries=1000, retry_policy=fixed(delay=0.05))
def flaky():
    raise OSError


@app.task(queue="long")
def long(seconds):
    time.sleep(seconds)
"""

#: Where windows of rates and times of alerts are minutes and hours, here they are seconds.
WINDOW = "8s"

#: How far a rule that looks one hour back predicts, and the same for a window of `WINDOW`: with
#: four hours, any other program that writes to the disk for a moment fills it.
HORIZON, HORIZON_HERE = "4 * 3600", "4 * 8"


def rules_of_here() -> str:
    """Return the rules, with times and thresholds that fit into a test."""
    text = FILE.read_text("utf-8")
    text = re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", text)
    assert HORIZON in text
    text = text.replace(HORIZON, HORIZON_HERE)
    text = re.sub(r"(?m)^( +for:) .*$", r"\1 1s", text)
    for alert, (threshold, here) in PROVOKED.items():
        if threshold:
            before, begin, rest = text.partition(f"alert: {alert}\n")
            assert threshold in rest.partition("labels:")[0], alert
            text = before + begin + rest.replace(threshold, here, 1)
    return text


#: Bytes of failed jobs that brokers keep, and what one of them is to leave free of its disk.
FAILED_BYTES, RESERVE = "20000", str(1 << 60)


class Shop:
    """A broker on a file with two workers, two on PostgreSQL, one without space; a load on most."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "shop.py").write_text(SHOP)
        self.shell = Shell(
            folder, EVENTMQ_HEARTBEAT_INTERVAL="0.3", EVENTMQ_HEARTBEAT_TIMEOUT="3",
            EVENTMQ_MAX_FAILED_BYTES=FAILED_BYTES,
        )  # fmt: skip
        self.targets: dict[str, list[str]] = {}
        self.broker, self.address = self._broker("eventmq", "--data-dir", "data")
        shared = [self._broker("eventmq-shared", "--store", url) for _ in range(2)]
        self.first_owner = shared[0][0]
        self.shell.environ["EVENTMQ_DISK_RESERVE"] = RESERVE
        self._broker("eventmq-full", "--data-dir", "full")
        del self.shell.environ["EVENTMQ_DISK_RESERVE"]
        self.database_url = url
        self.shared_address = ",".join(address for _, address in shared)
        self.worker = self._worker("default")
        self.long_worker = self._worker("long")
        self.app = EventMQ("client", broker=self.address, submit_timeout=20.0)
        self.shared = EventMQ("client", broker=self.shared_address, submit_timeout=20.0)
        self._ended = threading.Event()
        self._load = threading.Thread(target=self._submit)

    def _target(self, job: str) -> str:
        self.targets.setdefault(job, []).append(f"127.0.0.1:{free_port()}")
        return self.targets[job][-1]

    def _broker(self, job: str, *options: str) -> tuple[Program, str]:
        broker = self.shell.start(
            "broker", "--bind", "tcp://127.0.0.1:0", "--metrics-bind", self._target(job), *options
        )
        return broker, broker.ready()["main"]

    def _worker(self, queue: str) -> Program:
        worker = self.shell.start(
            "worker", "-A", "shop", "--broker", self.address, "-Q", queue, "-c", "1",
            "--pool", "threads", "--metrics-bind", self._target("eventmq-workers"),
        )  # fmt: skip
        worker.ready()
        return worker

    def start_load(self) -> None:
        """Submit jobs that end in all ways until the end."""
        self.app.send("shop.good", queue="nobody")
        self.app.send("shop.good", queue="held")
        self.app.ask("pause", {"queue": "held"})
        for _ in range(3):
            self.app.send("shop.long", (600,), queue="long")
        self.app.send("shop.flaky", retries=1000)
        self._load.start()

    def _submit(self) -> None:
        while not self._ended.wait(0.2):
            try:
                for _ in range(3):
                    self.app.send("shop.good")
                self.app.send("shop.bad")
                self.app.send("shop.good", queue="nobody", expires=0.3)
                self.app.ask("no-such-call")
            except EventMQError:
                continue

    def stop_load(self) -> None:
        self._ended.set()
        if self._load.ident is not None:
            self._load.join()

    def close(self) -> None:
        self.stop_load()
        self.app.close()
        self.shared.close()
        self.shell.close()


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    program("prometheus")
    shop = Shop(tmp_path, database_url)
    yield shop
    shop.close()


@pytest.fixture
def prometheus(tmp_path: Path, shop: Shop) -> Iterator[Prometheus]:
    (tmp_path / "alerts.yml").write_text(rules_of_here())
    server = Prometheus(tmp_path, "alerts.yml", shop.targets)
    yield server
    server.close()


def of_here(expression: str) -> str:
    """Return a query of the dashboard as Grafana sends it, with all selected."""
    text = expression.replace("$__rate_interval", WINDOW)
    return text.replace("$job", ".*").replace("$queue", ".*")


def names_in(expression: str) -> set[str]:
    """Return the metrics that an expression names."""
    return set(re.findall(r"\b(?:eventmq|process)_\w+(?=[{\[ )<>]|$)", expression))


def test_every_alert_is_provoked_or_has_a_reason() -> None:
    assert set(RULES) == {*PROVOKED, *NOT_HERE}
    assert not set(PROVOKED) & set(NOT_HERE)


def test_the_dashboard_has_a_panel_for_what_an_operator_asks() -> None:
    """Panels have an id of their own, do not overlap, and take the selected data source."""
    assert len(PANELS) == len({panel["id"] for panel in PANELS})
    colored: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not colored & cells, panel["title"]
        colored |= cells
    sources = [each["datasource"] for panel in PANELS for each in (panel, *panel["targets"])]
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in sources)


def test_queries_have_answers_and_alerts_fire(shop: Shop, prometheus: Prometheus) -> None:
    """For the dashboard and the rules; then processes are killed, and the remaining alerts fire."""
    shop.start_load()
    with psycopg.connect(shop.database_url) as open_one:
        open_one.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        open_one.execute("SELECT count(*) FROM pg_class")  # and stays open
        shop.shared.send("shop.good")
        fired: dict[str, dict[str, Any]] = {}

        def wait_for(alerts: set[str]) -> None:
            def fire() -> bool:
                fired.update(prometheus.firing())
                return alerts <= set(fired)

            try:
                until(fire, "the alerts fire", 60.0)
            except AssertionError:
                raise AssertionError(f"not fired: {sorted(alerts - set(fired))}") from None

        wait_for(set(PROVOKED) - AT_THE_END - {"EventMQStoreChangesHands"})
    empty = {query for query in QUERIES if not prometheus.query(of_here(query))}
    assert set() == empty
    keda = yaml.safe_load((FILE.parents[1] / "kubernetes-keda.yaml").read_text("utf-8"))
    [trigger] = keda["spec"]["triggers"]
    for queue in ("long", "unknown"):
        query = trigger["metadata"]["query"].replace("default", queue)
        [sample] = prometheus.query(query)
        assert {"long": "3", "unknown": "0"}[queue] == sample["value"][1]
    assert {"ok"} == {rule["health"] for rule in prometheus.rules()}
    named = set().union(*map(names_in, (*QUERIES, *(rule["expr"] for rule in RULES.values()))))
    assert len(named) > 20
    assert set() == named - prometheus.names()
    assert not set(fired) & set(NOT_HERE)

    shop.shared.ask("handover")
    wait_for({"EventMQStoreChangesHands"})
    shop.long_worker.process.kill()
    shop.first_owner.process.kill()  # it stands by since the handover
    wait_for({"EventMQWorkersLost", "EventMQNoStandby", "EventMQTargetDown"})
    shop.stop_load()
    shop.broker.stop(signal.SIGKILL)
    wait_for(AT_THE_END)
    summary = fired["EventMQNoWorkers"]["annotations"]["summary"]
    assert summary in {f"No worker serves the queue {name}" for name in ("nobody", "default")}
    texts = [text for each in fired.values() for text in each["annotations"].values()]
    assert [] == [text for text in texts if "<error" in text or "<no value>" in text]
