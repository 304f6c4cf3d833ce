"""deploy/kubernetes: Kubernetes takes the manifests, and what they say of the programs is so."""

import copy
import re
import subprocess
import sys
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from support import PROGRAM, ROOT, Server

KUBERNETES = "1.37"


def text_of(file: str) -> str:
    return (ROOT / "deploy/kubernetes" / file).read_text()


def resources_of(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text_of(file)))


# With the lines behind "# GPU:", which replace those above them that begin alike.
def on_gpus(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        gpu = re.fullmatch(r"( *)# GPU: (.*)", line)
        if gpu:
            line = gpu[1] + gpu[2]
            if re.split("[:=]", lines[-1])[0] == re.split("[:=]", line)[0]:
                lines.pop()
        lines.append(line)
    return "\n".join(lines)


RESOURCES = resources_of("volley.yaml")
ROUTER = resources_of("router.yaml")
NODES = resources_of("nodes.yaml")
GPU_NODES = list(yaml.safe_load_all(on_gpus(text_of("nodes.yaml"))))


def of_kind(kind: str, resources: list[dict[str, Any]] = RESOURCES) -> dict[str, Any]:
    (resource,) = [resource for resource in resources if resource["kind"] == kind]
    return resource


POD = of_kind("Deployment")["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]


GROUP = of_kind("LeaderWorkerSet", NODES)["spec"]["leaderWorkerTemplate"]
LEADER, WORKER = GROUP["leaderTemplate"], GROUP["workerTemplate"]


# SET leaves the pods out: each is checked as a Deployment's.
def pods_of(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    group = of_kind("LeaderWorkerSet", nodes)["spec"]["leaderWorkerTemplate"]
    deployment = of_kind("Deployment")
    pods = [group["leaderTemplate"], group["workerTemplate"]]
    return [deployment | {"spec": deployment["spec"] | {"template": pod}} for pod in pods]


@pytest.mark.parametrize(
    "resource",
    [*RESOURCES, *ROUTER, *pods_of(NODES), *pods_of(GPU_NODES), *NODES[1:]],
    ids=lambda resource: resource["kind"],
)
def test_the_schema_is_kept(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, KUBERNETES, strict=True)


def test_a_wrong_field_is_found() -> None:
    wrong = of_kind("Service") | {"spec": {"ports": [{"prot": 8000}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


# What Volley sets of a LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), which no package has a schema for. Other fields
# are mistakes here: the API server would drop them.
SET: dict[str, Any] = {
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": {
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "leaderWorkerTemplate": {
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {"enum": ["None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"]},
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize("nodes", [NODES, GPU_NODES], ids=["cpu", "gpu"])
def test_the_schema_of_a_leader_worker_set_is_kept(nodes: list[dict[str, Any]]) -> None:
    jsonschema.validate(nodes[0], SET)
    wrong = []
    for field, value in (("size", "2"), ("restartPolicy", "Always"), ("sizes", 2)):
        wrong.append(copy.deepcopy(nodes[0]))
        wrong[-1]["spec"]["leaderWorkerTemplate"][field] = value
    wrong.append(copy.deepcopy(nodes[0]))
    del wrong[-1]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    for resource in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(resource, SET)


# Protects: what is commented out is complete, and the same for all nodes.
def test_nodes_on_gpus_differ_by_what_a_gpu_needs() -> None:
    group = of_kind("LeaderWorkerSet", GPU_NODES)["spec"]["leaderWorkerTemplate"]
    for pod, cpu in ((group["leaderTemplate"], LEADER), (group["workerTemplate"], WORKER)):
        container, plain = pod["spec"]["containers"][0], copy.deepcopy(cpu["spec"]["containers"][0])
        assert pod["spec"]["tolerations"] == POD["spec"]["tolerations"]
        plain["image"] = CONTAINER["image"]
        plain["args"] = [arg.replace("--device=cpu", "--device=cuda") for arg in plain["args"]]
        plain["resources"]["limits"]["nvidia.com/gpu"] = CONTAINER["resources"]["limits"]["nvidia.com/gpu"]
        assert container == plain
        assert "--device=cuda" in container["args"]
        options = dict(arg.split("=", 1) for arg in container["args"] if "=" in arg)
        ranks_of_a_node = int(options["--tensor-parallel-size"]) // group["size"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == ranks_of_a_node


def test_labels_and_ports_meet() -> None:
    labels = POD["metadata"]["labels"].items()
    assert of_kind("Deployment")["spec"]["selector"]["matchLabels"].items() <= labels
    assert of_kind("Service")["spec"]["selector"].items() <= labels
    assert of_kind("Service")["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]
    assert f"--port={CONTAINER['ports'][0]['containerPort']}" in CONTAINER["args"]


def test_the_router_finds_the_servers() -> None:
    pod = of_kind("Deployment", ROUTER)["spec"]["template"]
    container = pod["spec"]["containers"][0]
    options = dict(word.lstrip("-").split("=", 1) for word in container["args"] if "=" in word)
    label, name = options["selector"].split("=")
    assert POD["metadata"]["labels"][label] == name
    assert int(options["service-discovery-port"]) == CONTAINER["ports"][0]["containerPort"]
    assert int(options["port"]) == container["ports"][0]["containerPort"]
    assert of_kind("Service", ROUTER)["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    account = of_kind("ServiceAccount", ROUTER)["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] == account == of_kind("RoleBinding", ROUTER)["subjects"][0]["name"]
    command = [sys.executable, *container["command"][1:], "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", text))
    assert {word.split("=")[0] for word in container["args"]} <= known


def test_nodes_agree_on_options_labels_and_ports() -> None:
    container = LEADER["spec"]["containers"][0]
    options = dict(word.split("=", 1) for word in container["args"] if "=" in word)
    assert int(options["--tensor-parallel-size"]) % GROUP["size"] == 0
    assert {"$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"} <= set(options.values())
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (ports["http"], ports["nodes"]) == (int(options["--port"]), int(options["--master-port"]))
    labels = LEADER["metadata"]["labels"].items()
    assert labels <= of_kind("Service", NODES)["spec"]["selector"].items()
    assert labels == of_kind("NetworkPolicy", NODES)["spec"]["podSelector"]["matchLabels"].items()
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"] + int(options["--drain-timeout"])
    assert LEADER["spec"]["terminationGracePeriodSeconds"] > stop + 2
    assert WORKER["spec"]["terminationGracePeriodSeconds"] > stop + 5


# Only node 0 can say whether the engine is loaded, and where it cannot yet, nobody is to be sent to it.
def test_the_first_of_the_nodes_has_probes_and_is_the_others_otherwise() -> None:
    leader, worker = (pod["spec"]["containers"][0] for pod in (LEADER, WORKER))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert leader[name]["httpGet"] == CONTAINER[name]["httpGet"]
    assert leader["startupProbe"]["periodSeconds"] * leader["startupProbe"]["failureThreshold"] >= 1200
    own = {"startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "ports"}
    assert worker == {key: value for key, value in leader.items() if key not in own} | {"ports": worker["ports"]}
    assert [port for port in leader["ports"] if port["name"] == "nodes"] == worker["ports"]
    pods = [{key: value for key, value in pod["spec"].items() if key != "containers"} for pod in (LEADER, WORKER)]
    assert pods[0] == pods[1]
    assert LEADER["metadata"] == WORKER["metadata"]


@pytest.mark.parametrize("container", [CONTAINER, LEADER["spec"]["containers"][0]], ids=["server", "nodes"])
def test_options_exist(container: dict[str, Any]) -> None:
    command, *options = container["args"]
    text = subprocess.run([PROGRAM, command, "--help-all"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", text))
    assert {option.split("=")[0] for option in options} <= known


def test_a_stop_has_time_to_drain() -> None:
    (drain,) = [int(arg.split("=")[1]) for arg in CONTAINER["args"] if arg.startswith("--drain-timeout=")]
    sleep = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["spec"]["terminationGracePeriodSeconds"] > sleep + drain + 2


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_are_answered(server: Server, probe: str) -> None:
    assert server.request("GET", CONTAINER[probe]["httpGet"]["path"])[0] == 200
