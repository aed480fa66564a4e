"""The files of deploy/ that run `qpr serve` over Milvus have the fields that their readers know."""

import pathlib
import re

import click
import pytest
import yaml

from qpr_jax.cli.commands import qpr
from qpr_jax.index.milvus_server import Address

DEPLOY = pathlib.Path(__file__).parent.parent / "deploy"
# Of a service of the Compose specification; a name that is none is an error there, too.
SERVICE = {
    *("image", "build", "command", "entrypoint", "environment", "volumes", "ports", "healthcheck"),
    *("depends_on", "restart"),
}
HEALTHCHECK = {"test", "interval", "timeout", "retries", "start_period"}


def check_serve(words):
    """That these are the words of `qpr serve` over an address."""
    command, address, *rest = words
    assert command == "serve"
    assert str(Address.parse(address)) == address
    context = click.Context(qpr.commands["serve"])
    qpr.commands["serve"].parse_args(context, [address, *rest])


def test_the_compose_file():
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert {*found} == {"name", "services", "volumes"}
    for service in found["services"].values():
        assert {*service} <= SERVICE
        assert {*service["healthcheck"]} <= HEALTHCHECK
        assert all(isinstance(value, str) for value in service["environment"].values())
        for name in service.get("depends_on", ()):
            assert "healthcheck" in found["services"][name]
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in found["volumes"]
    ours = found["services"]["qpr"]
    check_serve(ours["command"])
    assert Address.parse(ours["command"][1]).host in found["services"]
    build = ours["build"]
    container = (DEPLOY / build["context"] / build["dockerfile"]).read_text()
    assert all(re.search(rf"^ARG {name}\b", container, re.M) for name in build["args"])


def test_the_manifests_of_kubernetes():
    documents = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "serve.yaml").read_text())]
    kinds = {(found["apiVersion"], found["kind"]): found for found in documents}
    deployment = kinds["apps/v1", "Deployment"]["spec"]
    service = kinds["v1", "Service"]["spec"]
    budget = kinds["policy/v1", "PodDisruptionBudget"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == service["selector"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["minAvailable"] < deployment["replicas"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    check_serve(container["args"])
    ports = {port["name"] for port in container["ports"]}
    probes = {name: container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in probes.values()} <= ports
    assert {port["targetPort"] for port in service["ports"]} <= ports
    assert (probes["readinessProbe"]["path"], probes["livenessProbe"]["path"]) == (
        "/ready",
        "/health",
    )
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    for variable in container["env"]:
        assert ("value" in variable) != ("valueFrom" in variable)
    kubernetes = pytest.importorskip("kubernetes_validate", reason="only the fields were compared")
    for document in documents:
        kubernetes.validate(document, "1.33", strict=True)


def test_the_values_of_the_chart_of_milvus():
    values = yaml.safe_load((DEPLOY / "kubernetes" / "milvus-values.yaml").read_text())
    assert values["cluster"] == {"enabled": False}
    assert values["pulsar"] == {"enabled": False}
