"""The Kubernetes manifests."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import coherer
from coherer._server.options.node import NodeOptions
from coherer.message import Message
from tests.deploy.deployment import COHERER, DEPLOY, Started

MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/coherer.yml").read_text()))


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [one for one in MANIFESTS if one["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("StatefulSet")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("kind", ["Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"])
def test_the_manifests_match_the_schema_of_kubernetes(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the validator's own libraries
        version = kubernetes_validate.latest_version()
        kubernetes_validate.validate(manifest(kind), version, strict=True)


def test_names_and_ports_agree() -> None:
    (container,) = pod()["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for one in manifest("Service")["spec"]["ports"]:
        assert (one["name"], one["port"]) in ports.items()
        assert one["targetPort"] == one["name"]
    defaults = NodeOptions(directory=Path())
    assert ports == {
        "tubemq-master": defaults.master_port,
        "tubemq-broker": defaults.broker_port,
        "http": defaults.admin_port,
        "namesrv": defaults.namesrv_port,
        "rocketmq": defaults.rocketmq_port,
        "rocketmq-fast": defaults.fast_port,
        "metrics": 9090,  # of the Dockerfile
    }
    labels = manifest("StatefulSet")["spec"]["selector"]["matchLabels"]
    assert manifest("StatefulSet")["spec"]["template"]["metadata"]["labels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("Service")["metadata"]["name"] == manifest("StatefulSet")["spec"]["serviceName"]
    (claim,) = manifest("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert container["volumeMounts"] == [{"name": claim["metadata"]["name"], "mountPath": "/data"}]
    assert pod()["enableServiceLinks"] is False, "COHERER_PORT would be an option of the node"
    assert pod()["securityContext"]["runAsNonRoot"] is True


def test_no_secret_works_unchanged() -> None:
    assert "Secret" not in [one["kind"] for one in MANIFESTS]
    (container,) = pod()["containers"]
    (users,) = [one for one in container["env"] if one["name"] == "COHERER_USERS"]
    reference = users["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "coherer", "key": "users"}, "required: the pod waits for it"


def test_images_are_pinned() -> None:
    (container,) = pod()["containers"]
    assert container["image"] == f"coherer:{coherer.__version__}"
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    images = [one["image"] for one in compose["services"].values() if "image" in one]
    images += re.findall(r"(?m)^FROM (\S+)", (DEPLOY / "Dockerfile").read_text())
    assert len(images) == 4
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), image


def test_grace_periods_agree_and_leave_time_to_stop() -> None:
    grace_s = pod()["terminationGracePeriodSeconds"]
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    assert compose["services"]["node"]["stop_grace_period"] == f"{grace_s // 60}m"
    unit = (DEPLOY / "systemd/coherer.service").read_text()
    assert f"TimeoutStopSec={grace_s // 60}min" in unit
    (container,) = pod()["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    (drain_s,) = map(int, re.findall(r"-lt (\d+)", command))
    assert command.startswith("kill -USR1 1;"), "`coherer serve` is process 1, and drains"
    assert drain_s + 30 <= grace_s


def test_the_network_policy_covers_every_port() -> None:
    (container,) = pod()["containers"]
    rules = manifest("NetworkPolicy")["spec"]["ingress"]
    allowed = {port["port"]: rule["from"] for rule in rules for port in rule["ports"]}
    assert set(allowed) == {one["name"] for one in container["ports"]}
    assert all(allowed.values()), "nobody is allowed from everywhere"
    labels = manifest("StatefulSet")["spec"]["selector"]["matchLabels"]
    assert manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels


def test_the_container_starts_and_answers_its_probes(tmp_path: Path) -> None:
    (container,) = pod()["containers"]
    # A name, as in a cluster; this machine knows only its own.
    values = {"POD_NAME": "localhost", "COHERER_USERS": "admin=of-the-test"}
    environment = {
        one["name"]: one.get("value", values.get(one["name"], "")).replace(
            "$(POD_NAME).coherer", "localhost"
        )
        for one in container["env"]
    }
    environment |= {"COHERER_DIRECTORY": str(tmp_path), "COHERER_HOST": "0.0.0.0"}
    command = [COHERER, *container["args"][1:]]
    with Started(command, environment) as node:
        found = node.ready()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = container[probe]["httpGet"]
            assert (get["port"], node.status(get["path"])) == ("metrics", 200)
        for url in (found["url"], found["rocketmq_url"]):
            assert "//localhost:" in url
            with (
                coherer.blocking.connect(url, user="admin", password="of-the-test") as client,
                client.producer("flights") as producer,
            ):
                assert producer.send(Message("flights", b"x")).partition >= 0
        assert node.stop() == 0
