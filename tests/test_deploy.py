"""The files of deploy/ name things that exist: options, addresses, ports, volumes and probes."""

import re

import click
import yaml

from qpr_jax.cli.commands import qpr
from qpr_jax.index.milvus_server import parse_address
from tests.runs import ROOT

DEPLOY = ROOT / "deploy"


def check_serve(words):
    """That these are the words of `qpr serve` over an address."""
    command, address, *rest = words
    assert command == "serve"
    assert parse_address(address)
    context = click.Context(qpr.commands["serve"])
    qpr.commands["serve"].parse_args(context, [address, *rest])


def test_the_compose_file():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ours = services["qpr"]
    check_serve(ours["command"])
    assert parse_address(ours["command"][1])[0].partition(":")[0] in services
    build = ours["build"]
    container = (DEPLOY / build["context"] / build["dockerfile"]).read_text()
    assert all(re.search(rf"^ARG {name}\b", container, re.M) for name in build["args"])


def test_the_manifests_of_kubernetes():
    documents = [*yaml.safe_load_all((DEPLOY / "kubernetes" / "serve.yaml").read_text())]
    deployment, service, budget = (document["spec"] for document in documents)
    pod, labels = deployment["template"]["spec"], deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels == service["selector"]
    assert budget["selector"]["matchLabels"] == labels
    (container,) = pod["containers"]
    check_serve(container["args"])
    ports = {port["name"] for port in container["ports"]}
    probes = [container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert {probe["port"] for probe in probes} <= ports
    assert {port["targetPort"] for port in service["ports"]} <= ports
    assert [probe["path"] for probe in probes] == ["/ready", "/health"]
