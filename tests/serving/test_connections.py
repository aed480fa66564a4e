"""Requests that are too large, too slow, broken off, or not HTTP, and clients that do not read."""

import json
import re
import socket
import time

import pytest

import qpr_jax
from qpr_jax.serving.app import make_app
from qpr_jax.serving.limits import Limits
from tests.serving.conftest import LIMITS, QUESTIONS, TOKEN, connect, wait_until


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_that_is_too_large_is_refused(client, chunked):
    parts = [b"x" * 1000] * 11
    answer = client.post("/search", content=iter(parts) if chunked else b"".join(parts))
    assert answer.status_code == 413
    assert answer.json() == {"error": "expected a body of at most 10,000 bytes, got more"}


@pytest.mark.parametrize("length", ["-5", "x", "1" * 5000, "5, 5"])
def test_a_wrong_content_length_is_refused(address, length):
    with connect(address) as connection:
        head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.recv(1000)
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    "request_bytes",
    [
        *(b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0" * 100),
        *(b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        *(b"get / HTTP/1.1\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n"),
        *(b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n"),
        b"GET / HTTP/1.1\r\nX: \0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n{}",
    ],
)
def test_malformed_http_is_answered_in_json(exchange, request_bytes):
    head, _, body = exchange(request_bytes).partition(b"\r\n\r\n")
    status, *headers = head.lower().split(b"\r\n")
    assert status.startswith(b"http/1.1 400 ")
    assert b"content-type: application/json" in headers
    assert b"content-length: %d" % len(body) in headers
    assert b"connection: close" in headers
    assert b"x-qpr-version: %s" % qpr_jax.__version__.encode() in headers
    assert any(re.fullmatch(rb"x-request-id: [0-9a-f]{32}", header) for header in headers)
    assert json.loads(body) == {"error": "expected an HTTP/1.1 request, got other bytes"}


@pytest.fixture
def connection(address):
    with connect(address) as connection:
        yield connection


HALF = (
    f"POST /questions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    'Content-Length: 99\r\n\r\n{"questions": ["a"]}'
).encode()


def test_a_request_that_breaks_off_is_not_carried_out(connection, client, shared_retriever):
    connection.sendall(HALF)
    connection.close()
    line = 'qpr_requests_total{method="POST",path="/questions",status="gone"} 1.0'
    wait_until(lambda: line in client.get("/metrics").text)
    assert dict(shared_retriever.index) == QUESTIONS


def test_a_body_that_does_not_come(retriever, serve):
    with connect(serve(make_app(retriever, limits=Limits(body_seconds=0.2)))) as connection:
        connection.sendall(HALF)
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("head", [b"GET /health HTTP/1.1\r\nX: ", b"GET /"])
def test_a_head_without_end(connection, head):
    connection.sendall(head + b"x" * (1 << 17))
    assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("head", [b"", b"GET /health HTTP/1.1\r\nX: "])
def test_a_head_that_does_not_come(head, retriever, serve):
    with connect(serve(make_app(retriever), Limits(head_seconds=0.2))) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" if head else b"")
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert answer.count(b"HTTP/1.1 200 ") == (head != b"")


def test_an_answer_that_is_not_read(retriever, serve):
    address = serve(make_app(retriever, limits=LIMITS), Limits(unread_seconds=0.2))
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(10_000):
                connection.sendall(asked)
                time.sleep(0.001)
