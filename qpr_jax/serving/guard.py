"""What stands before the service: limits on size, time and number of requests, and measures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BODY_SECONDS = 30.0
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Message = dict[str, Any]


class ServerMetrics:
    """What `/metrics` tells; of each application its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = ["method", "path"]
        self.requests = Counter(
            "qpr_requests", "Requests answered.", [*names, "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "qpr_request_seconds",
            "Time to answer.",
            names,
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
    """An ASGI application around another, which is given whole, small bodies only."""

    def __init__(
        self,
        app: Any,
        measures: ServerMetrics,
        *,
        paths: Collection[str],
        body: int,
        concurrent: int,
    ) -> None:
        """paths: that are measured apart. body: bytes at most.

        concurrent: requests at a time at most, GET apart, which costs nothing: who looks whether
        the server is well is answered when it is busy too.
        """
        self._app, self._measures, self._paths = app, measures, paths
        self._body, self._concurrent = body, concurrent
        self._now = 0

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), "gone"

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            if scope["method"] in ("GET", "HEAD"):
                await self._app(scope, receive, noting)
            else:
                await self._answer(scope, receive, noting)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            if scope["path"].startswith("/questions/"):
                path = "/questions/{id}"
            method = scope["method"] if scope["method"] in ("GET", "POST", "DELETE") else "other"
            self._measures.requests.labels(method, path, status).inc()
            self._measures.seconds.labels(method, path).observe(time.perf_counter() - start)

    async def _answer(self, scope: Message, receive: Any, send: Any) -> None:
        if self._now >= self._concurrent:
            await _refuse(send, 429, f"{self._concurrent} requests are being answered; wait")
            return
        self._now += 1
        try:
            await self._pass_on(scope, receive, send)
        finally:
            self._now -= 1

    async def _pass_on(self, scope: Message, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await self._read(scope, receive)
        except TimeoutError:
            await _refuse(send, 408, f"expected the body within {_BODY_SECONDS:.0f} s")
        except _TooLargeError:
            await _refuse(send, 413, f"expected a body of at most {self._body:,} bytes, got more")
        else:
            if body is not None:
                await self._app(scope, _receiver(body, receive), send)

    async def _read(self, scope: Message, receive: Any) -> bytes | None:
        """The whole body; None where the client has gone, since a part of it is no request."""
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


def _receiver(body: bytes, receive: Any) -> Any:
    left = [body]

    async def given() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return given


async def _refuse(send: Any, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == 408:
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
