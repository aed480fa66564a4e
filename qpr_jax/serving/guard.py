"""The outermost layer of the service: limits on hosts, size, time and load, and metrics."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Collection
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qpr_jax.errors import spell
from qpr_jax.serving.models import Limits, shorten

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

_HOST = re.compile(rb"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(?::[0-9]*)?")
_BODY_SECONDS = 30.0
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Message = dict[str, Any]


class ServerMetrics:
    """The counts and times that `/metrics` reports, for one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = ["method", "path"]
        self.requests = Counter(
            "qpr_requests", "Requests answered.", [*names, "status"], registry=self.registry
        )
        self.seconds = Histogram(
            *("qpr_request_seconds", "Time to answer.", names),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.batches = Histogram(
            "qpr_batch_queries", "Queries of a batch.", buckets=_SIZES, registry=self.registry
        )
        self.questions = Gauge(
            "qpr_questions", "Questions that can be found.", registry=self.registry
        )


class _TooLargeError(Exception):
    pass


class Guard:
    """An ASGI application that checks requests and passes them whole to another one.

    It reads the body of a request before it calls the other application, which therefore never
    waits for a client.
    """

    def __init__(
        self,
        app: Any,
        metrics: ServerMetrics,
        *,
        paths: Collection[str],
        hosts: Collection[str],
        limits: Limits,
    ) -> None:
        """Wrap `app`.

        Args:
          paths: those with metrics of their own.
          hosts: names allowed in the `Host` header, without port; "*" allows all. Other names are
            refused, since a web page whose domain name was pointed at this address (DNS rebinding)
            could otherwise read the answers.
          limits: of bodies and of requests at a time. GET does not count: it costs nothing, and
            health checks must be answered under load too.
        """
        self._app, self._metrics, self._paths = app, metrics, paths
        self._hosts = None if "*" in hosts else {host.lower().encode() for host in hosts}
        self._body, self._concurrent = limits.body, limits.concurrent
        self._in_flight = 0

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), "gone"

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            if (wrong := self._wrong_host(scope)) is not None:
                line = f"expected a `Host` that this server allows, got {shorten(wrong)}; "
                line += spell("start it with {allowed_host=NAME}")
                await _send_error(send_and_note_status, 400, line)
            elif scope["method"] in ("GET", "HEAD"):
                await self._app(scope, receive, send_and_note_status)
            else:
                await self._read_and_forward(scope, receive, send_and_note_status)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            if scope["path"].startswith("/questions/"):
                path = "/questions/{id}"
            method = scope["method"] if scope["method"] in ("GET", "POST", "DELETE") else "other"
            self._metrics.requests.labels(method, path, status).inc()
            self._metrics.seconds.labels(method, path).observe(time.perf_counter() - start)

    def _wrong_host(self, scope: Message) -> str | None:
        """What the `Host` header says, or "none"; None where it is allowed."""
        if self._hosts is None:
            return None
        given = [value for name, value in scope["headers"] if name == b"host"]
        match = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if match and match[1] in self._hosts:
            return None
        return b", ".join(given).decode("latin-1") or "none"

    async def _read_and_forward(self, scope: Message, receive: Any, send: Any) -> None:
        """Pass a request on with its whole body, if there are not too many at a time."""
        if self._in_flight >= self._concurrent:
            await _send_error(send, 429, f"{self._concurrent} requests are being answered; wait")
            return
        self._in_flight += 1
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await self._read(scope, receive)
        except TimeoutError:
            await _send_error(send, 408, f"expected the body within {_BODY_SECONDS:.0f} s")
        except _TooLargeError:
            await _send_error(
                send, 413, f"expected a body of at most {self._body:,} bytes, got more"
            )
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)
        finally:
            self._in_flight -= 1

    async def _read(self, scope: Message, receive: Any) -> bytes | None:
        """The whole body; None where the client disconnected before it was complete."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._body:
            raise _TooLargeError
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._body:
                raise _TooLargeError
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Any) -> Any:
    """An ASGI `receive` that gives `body`, then what `receive` gives."""
    left = [body]

    async def receive_body() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return receive_body


async def _send_error(send: Any, status: int, line: str) -> None:
    body = json.dumps({"error": line}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += {408: [(b"connection", b"close")], 429: [(b"retry-after", b"1")]}.get(status, [])
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
