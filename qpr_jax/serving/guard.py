"""What stands before the service: limits on size, time and number of requests, and measures."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BODY_SECONDS = 30.0
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PATHS = ("/", "/search", "/encode", "/questions", "/health", "/metrics", "/openapi.json")

Message = dict[str, Any]


class Measures:
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


class Guard:
    """An ASGI application around another, which is given whole, small bodies only."""

    def __init__(self, app: Any, measures: Measures, *, body: int, concurrent: int) -> None:
        """body: bytes at most. concurrent: requests at a time at most."""
        self._app, self._measures = app, measures
        self._body, self._concurrent = body, concurrent
        self._now = 0

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        finally:
            path = scope["path"] if scope["path"] in _PATHS else "other"
            if scope["path"].startswith("/questions/"):
                path = "/questions/{id}"
            method = scope["method"] if scope["method"] in ("GET", "POST", "DELETE") else "other"
            self._measures.requests.labels(method, path, status).inc()
            self._measures.seconds.labels(method, path).observe(time.perf_counter() - start)

    async def _answer(self, scope: Message, receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await self._read(scope, receive)
        except TimeoutError:
            await _refuse(send, 408, f"expected the body within {_BODY_SECONDS:.0f} s")
            return
        if body is None:
            await _refuse(send, 413, f"expected a body of at most {self._body:,} bytes, got more")
            return
        if self._now >= self._concurrent:
            await _refuse(send, 429, f"{self._concurrent} requests are being answered; wait")
            return
        left = [body]

        async def given() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            return await receive()

        self._now += 1
        try:
            await self._app(scope, given, send)
        finally:
            self._now -= 1

    async def _read(self, scope: Message, receive: Any) -> bytes | None:
        """The whole body; None where it is too large."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._body:
            return None
        parts, size = [], 0
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._body:
                return None
            if not message.get("more_body", False):  # or the client has gone
                return b"".join(parts)


async def _refuse(send: Any, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        # What is left of the request is not read.
        (b"connection", b"close"),
    ]
    if status == 429:
        headers[-1] = (b"retry-after", b"1")
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
