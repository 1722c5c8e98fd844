"""The Kubernetes manifests."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import coherer
from coherer._server.node.node_options import NodeOptions
from coherer.message import Message
from tests.deploy.deployment import COHERER, DEPLOY, Started

MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/coherer.yml").read_text()))


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [one for one in MANIFESTS if one["kind"] == kind]
    return found


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("StatefulSet")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("kind", ["Secret", "Service", "StatefulSet"])
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


def test_the_container_starts_and_answers_its_probes(tmp_path: Path) -> None:
    (container,) = pod()["containers"]
    # A name, as in a cluster; this machine knows only its own.
    values = {"POD_NAME": "localhost", "COHERER_USERS": manifest("Secret")["stringData"]["users"]}
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
                coherer.blocking.connect(url, user="admin", password="change-me") as client,
                client.producer("flights") as producer,
            ):
                assert producer.send(Message("flights", b"x")).partition >= 0
        assert node.stop() == 0
