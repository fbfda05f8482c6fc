"""The files in deploy/ fit their schemas, their commands are there, and their names agree."""

from __future__ import annotations

import json
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.support.command_lines import parse
from tests.support.dockerfile import instructions, last_stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PORT = 47291
METRICS_PORT = 9472

#: The oldest release of Kubernetes that is supported, and the newest that the schemas know.
KUBERNETES = ("1.34", kubernetes_validate.latest_version())

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
)
IMAGE = last_stage((DEPLOY / "Dockerfile").read_text("utf-8"))
HEALTH = json.loads(IMAGE["HEALTHCHECK"].partition(" CMD ")[2])
PODS = {
    each["metadata"]["name"]: each["spec"]["template"] for each in OBJECTS
    if "template" in each["spec"]
}  # fmt: skip


def command_lines() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each command line of EventMQ, without its name, and where it stands."""
    for name, service in SERVICES.items():
        if service["image"] == "eventmq":
            yield f"compose {name}", service["command"]
    yield "image health", HEALTH[1:]
    yield "image", json.loads(IMAGE["CMD"])
    for name, pod in PODS.items():
        spec = pod["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            yield f"{name} {container['name']}", container["args"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "exec" in container.get(probe, {}):
                    yield f"{name} {probe}", container[probe]["exec"]["command"][1:]


LINES = dict(command_lines())


def test_the_compose_file_is_one() -> None:
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    jsonschema.validate(COMPOSE, json.loads(schema.read_text("utf-8")))


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_the_objects_are_those_of_kubernetes(number: int, version: str) -> None:
    """Strictly: a field that the schema does not know is refused."""
    kubernetes_validate.validate(OBJECTS[number], version, strict=True)


def test_all_commands_are_found() -> None:
    """Otherwise the tests below would check nothing."""
    assert {
        "compose schema", "compose broker1", "compose broker2", "compose worker",
        "compose beat", "image", "image health", "eventmq schema",
        "eventmq broker", "eventmq startupProbe", "eventmq livenessProbe",
        "eventmq readinessProbe", "eventmq-worker worker", "eventmq-beat beat",
    } == set(LINES)  # fmt: skip


@pytest.mark.parametrize("where", LINES)
def test_every_command_line_is_one(where: str) -> None:
    words = [str(each) for each in LINES[where]]
    if words != ["--help"]:
        parse(words)


def probe(where: str) -> str:
    return " ".join(LINES[where])


def test_probes_ask_the_broker_beside_them() -> None:
    """One address: of several the owner would answer for a standby."""
    ready = f"status --check ready --broker tcp://127.0.0.1:{PORT}"
    for where in ("image health", "eventmq readinessProbe"):
        assert ready == probe(where)
    live = ready.replace("ready", "live")
    assert (live, live) == (probe("eventmq livenessProbe"), probe("eventmq startupProbe"))


def test_a_worker_is_alive_as_long_as_it_serves_its_metrics() -> None:
    """Whatever the metrics show: restarting workers does not help while brokers are away."""
    [container] = PODS["eventmq-worker"]["spec"]["containers"]
    line = container["args"]
    assert f"0.0.0.0:{METRICS_PORT}" == line[line.index("--metrics-bind") + 1]
    assert [{"name": "metrics", "containerPort": METRICS_PORT}] == container["ports"]
    assert {"path": "/metrics", "port": "metrics"} == container["livenessProbe"]["httpGet"]
    assert "readinessProbe" not in container, "nothing connects to a worker"


def test_peers_get_the_addresses_that_the_brokers_advertise() -> None:
    """In the file for compose, where each broker is a service."""
    brokers = [f"tcp://{name}:{PORT}" for name in SERVICES if name.startswith("broker")]
    for name, address in zip(("broker1", "broker2"), brokers, strict=True):
        line = SERVICES[name]["command"]
        assert address == line[line.index("--advertise") + 1]
    for name in ("worker", "beat"):
        assert brokers == SERVICES[name]["environment"]["EVENTMQ_BROKER"].split(",")


def test_peers_get_the_addresses_of_the_pods() -> None:
    [brokers] = [each for each in OBJECTS if each["kind"] == "StatefulSet"]
    name, service = brokers["metadata"]["name"], brokers["spec"]["serviceName"]
    assert service == OBJECTS[0]["metadata"]["name"]
    [container] = PODS[name]["spec"]["containers"]
    line = container["args"]
    assert f"tcp://$(POD).{service}:{PORT}" == line[line.index("--advertise") + 1]
    assert "POD" == container["env"][0]["name"]
    addresses = [f"tcp://{name}-{n}.{service}:{PORT}" for n in range(brokers["spec"]["replicas"])]
    for peer in ("eventmq-worker", "eventmq-beat"):
        [container] = PODS[peer]["spec"]["containers"]
        assert [{"name": "EVENTMQ_BROKER", "value": ",".join(addresses)}] == container["env"]


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: each["kind"])
def test_selectors_find_their_pods(each: dict[str, Any]) -> None:
    selector = each["spec"].get("selector", each["spec"].get("podSelector"))
    selected = selector.get("matchLabels", selector).items()
    labels = [pod["metadata"]["labels"].items() for pod in PODS.values()]
    assert [pods for pods in labels if selected <= pods], "of which there is one at least"


def test_the_network_lets_workers_and_beats_in() -> None:
    [policy] = [each for each in OBJECTS if each["kind"] == "NetworkPolicy"]
    rule, metrics = policy["spec"]["ingress"]
    assert {"ports": [{"port": METRICS_PORT}]} == metrics
    allowed = [source["podSelector"]["matchLabels"].items() for source in rule["from"]]
    for name, pod in PODS.items():
        labels = pod["metadata"]["labels"].items()
        assert any(each <= labels for each in allowed), name


def test_grace_is_longer_than_what_it_is_for() -> None:
    """A worker lets jobs run for 30 s after SIGTERM."""
    assert "60s" == SERVICES["worker"]["stop_grace_period"]
    assert 60 == PODS["eventmq-worker"]["spec"]["terminationGracePeriodSeconds"]


def test_only_brokers_have_the_health_check_of_the_image() -> None:
    """Anything else would be healthy where a broker runs beside it, and there is none."""
    disabled = {
        name for name, service in SERVICES.items()
        if service.get("healthcheck") == {"disable": True}
    }  # fmt: skip
    assert {"schema", "worker", "beat"} == disabled


def test_the_image_starts_the_program_without_privileges() -> None:
    assert ["eventmq"] == json.loads(IMAGE["ENTRYPOINT"])
    assert IMAGE["USER"] == "10001"
    for pod in PODS.values():
        assert {"runAsNonRoot": True, "runAsUser": 10001} == pod["spec"]["securityContext"]


def test_an_image_for_workers_adds_to_that_of_the_brokers() -> None:
    """It installs into the environment of EventMQ as root, and runs as the same user."""
    page = (ROOT / "docs" / "howto" / "operate" / "containers.rst").read_text("utf-8")
    block = page.partition(".. code-block:: dockerfile\n\n")[2].partition("\n\n")[0]
    steps = instructions(textwrap.dedent(block))
    assert ["FROM", "USER", "COPY", "RUN", "USER", "COPY"] == [name for name, _ in steps]
    _, root, _, run, user, copy = [value for _, value in steps]
    assert ("root", IMAGE["USER"]) == (root, user)
    assert run.startswith("pip install ")
    assert IMAGE["ENV"].startswith("PATH=/opt/eventmq/bin:")
    assert copy.endswith(f" {IMAGE['WORKDIR']}/")


@pytest.mark.parametrize("name", PODS)
def test_containers_of_pods_may_do_nothing_else(name: str) -> None:
    """No capability, and no file to write but in ``/tmp``."""
    spec = PODS[name]["spec"]
    assert [{"name": "tmp", "emptyDir": {}}] == spec["volumes"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        } == container["securityContext"]
        assert [{"name": "tmp", "mountPath": "/tmp"}] == container["volumeMounts"]


def test_services_of_compose_may_do_nothing_else() -> None:
    """The database has what its image needs."""
    for name, service in SERVICES.items():
        is_eventmq = service["image"] == "eventmq"
        expected = (["ALL"], ["no-new-privileges:true"]) if is_eventmq else (None, None)
        assert expected == (service.get("cap_drop"), service.get("security_opt")), name


# Autoscaling

SCALED: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes-keda.yaml").read_text("utf-8"))


def an_object(required: Sequence[str] = (), /, **fields: Any) -> dict[str, Any]:
    """Return the schema of an object that has no other fields."""
    return {"type": "object", "additionalProperties": False, "required": list(required),
            "properties": fields}  # fmt: skip


TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
POLICY = an_object(
    ("type", "value", "periodSeconds"), type={"enum": ["Pods", "Percent"]}, value=NUMBER,
    periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
)  # fmt: skip
SCALING = an_object(
    selectPolicy=TEXT, policies={"type": "array", "items": POLICY},
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
)  # fmt: skip

#: The fields of a ScaledObject of KEDA 2 that an autoscaler of workers may need, each as KEDA's own
#: definition (config/crd/bases/keda.sh_scaledobjects.yaml) has it. All in ``metadata`` is text.
SCALED_OBJECT = an_object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=an_object(
        ("name",), name=TEXT, labels={"type": "object", "additionalProperties": TEXT}
    ),
    spec=an_object(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=an_object(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        cooldownPeriod=NUMBER,
        fallback=an_object(
            ("failureThreshold", "replicas"), failureThreshold=NUMBER, replicas=NUMBER
        ),
        advanced=an_object(
            restoreToOriginalReplicaCount={"type": "boolean"},
            horizontalPodAutoscalerConfig=an_object(
                behavior=an_object(scaleDown=SCALING, scaleUp=SCALING)
            ),
        ),
        triggers={
            "type": "array",
            "minItems": 1,
            "items": an_object(
                ("type", "metadata"),
                type={"const": "prometheus"},
                metadata=an_object(
                    ("serverAddress", "query", "threshold"), serverAddress=TEXT, query=TEXT,
                    threshold=TEXT, activationThreshold=TEXT, ignoreNullValues=TEXT,
                ),
            ),
        },
    ),
)  # fmt: skip


def test_the_scaled_object_is_one() -> None:
    jsonschema.validate(SCALED, SCALED_OBJECT)


def test_workers_are_scaled_by_the_slots_of_one() -> None:
    """The scaled deployment exists, and has as many slots as the threshold."""
    spec = SCALED["spec"]
    [container] = PODS[spec["scaleTargetRef"]["name"]]["spec"]["containers"]
    line = container["args"]
    [trigger] = spec["triggers"]
    assert line[line.index("-c") + 1] == trigger["metadata"]["threshold"]
    [workers] = [each for each in OBJECTS if each["metadata"]["name"] == "eventmq-worker"]
    assert workers["spec"]["replicas"] == spec["fallback"]["replicas"]


def test_brokers_serve_the_metrics_that_are_asked_for() -> None:
    pod = PODS["eventmq"]
    [container] = pod["spec"]["containers"]
    line = container["args"]
    assert f"0.0.0.0:{METRICS_PORT}" == line[line.index("--metrics-bind") + 1]
    assert {"name": "metrics", "containerPort": METRICS_PORT} in container["ports"]
    assert str(METRICS_PORT) == pod["metadata"]["annotations"]["prometheus.io/port"]
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert "/src[postgres,prometheus]'" in text, "the library is in the image"
