"""What a server makes of bodies, heads and readers that are too large, too slow, or break off."""

import socket
import time

import pytest

from qpr_jax.serving import guard, protocol
from qpr_jax.serving.app import make_app
from tests.serving.conftest import LIMITS, QUESTIONS, TOKEN


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large_is_refused(client, chunked):
    parts = [b"x" * 1000] * 11
    answer = client.post("/search", content=iter(parts) if chunked else b"".join(parts))
    assert answer.status_code == 413
    assert answer.json() == {"error": "expected a body of at most 10,000 bytes, got more"}


@pytest.mark.parametrize("length", ["-5", "x", "1" * 5000, "5, 5"])
def test_a_length_that_is_none_is_refused(address, length):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        asked = f"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(asked.encode())
        assert connection.recv(1000).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


@pytest.fixture
def connection(address):
    """A connection of bytes."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        yield connection


HALF = (
    f"POST /questions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    'Content-Length: 99\r\n\r\n{"questions": ["a"]}'
).encode()


def test_a_request_that_breaks_off_is_not_carried_out(connection, client, retriever):
    connection.sendall(HALF)
    connection.close()
    line = 'qpr_requests_total{method="POST",path="/questions",status="gone"} 1.0'
    while line not in client.get("/metrics").text:
        pass
    assert dict(retriever.index) == QUESTIONS


def test_a_body_that_does_not_come(connection, monkeypatch):
    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.2)
    connection.sendall(HALF)
    answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("head", [b"GET /health HTTP/1.1\r\nX: ", b"GET /"])
def test_a_head_without_end(connection, head):
    connection.sendall(head + b"x" * (1 << 17))
    assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("head", [b"", b"GET /health HTTP/1.1\r\nX: "])
def test_a_head_that_does_not_come(head, retriever, serve, monkeypatch):
    monkeypatch.setattr(protocol, "_HEAD_SECONDS", 0.2)
    host, port = serve(make_app(retriever)).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" if head else b"")
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert answer.count(b"HTTP/1.1 200 ") == (head != b"")


def test_an_answer_that_is_not_read(retriever, serve, monkeypatch):
    monkeypatch.setattr(protocol, "_UNREAD_SECONDS", 0.2)
    address = serve(make_app(retriever, limits=LIMITS))
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(10_000):
                connection.sendall(asked)
                time.sleep(0.001)
