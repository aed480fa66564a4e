"""Which hosts a request may name."""

import json

import httpx
import pytest

from qpr_jax.serving.app import make_app


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost:8000:1"),
        *("[::1", "127.0.0.1@evil.example", "localhost/", "user:localhost", "x" * 5000, "\xff"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/search"])
def test_a_host_that_is_not_allowed_is_refused(client, path, host):
    """A page whose name was pointed at this address (DNS rebinding) reads nothing."""
    headers = {"Host": host.encode("latin-1")}
    if path == "/":
        answer = client.get(path, headers=headers)
    else:
        answer = client.post(path, json={"queries": ["a"]}, headers=headers)
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/json"
    line = answer.json()["error"]
    assert line.startswith("expected a `Host` that this server allows, got ")
    assert len(line) < 300
    assert line.isprintable()


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8000"]
)
def test_loopback_hosts_are_allowed(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


def test_hosts_that_the_operator_allows(retriever, serve):
    def statuses(allowed):
        address = serve(make_app(retriever, allowed_hosts=allowed))
        hosts = ["search.example", "Search.example:443", "localhost"]
        return [httpx.get(f"{address}/health", headers={"Host": h}).status_code for h in hosts]

    assert statuses(["SEARCH.example"]) == [200, 200, 400]
    assert statuses(["*"]) == [200, 200, 200]


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.example"]])
def test_none_or_several_hosts_are_refused(exchange, hosts):
    heads = "".join(f"Host: {host}\r\n" for host in hosts)
    answer = exchange(f"GET /health HTTP/1.1\r\n{heads}Connection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    line = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert f"got {', '.join(hosts) or 'none'}; " in line
