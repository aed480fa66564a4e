"""What is known of each request: its id, the line of the access log, counts and times."""

from __future__ import annotations

import datetime
import json
import re
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

import qpr_jax
from qpr_jax.serving.guard import Message

REQUEST_ID = "qpr_jax.request_id"  # in the scope of a request
VERSION_HEADER = (b"x-qpr-version", qpr_jax.__version__.encode())

_ID = re.compile(rb"[!-~]{1,128}")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServerMetrics:
    """The counts and times that `/metrics` reports, for one application."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        version = Info("qpr", "The version that runs.", registry=registry)
        version.info({"version": qpr_jax.__version__})
        names = ["method", "path"]
        self.requests = Counter(
            "qpr_requests", "Requests answered.", [*names, "status"], registry=registry
        )
        self.seconds = Histogram(
            "qpr_request_seconds", "Time to answer.", names, buckets=_SECONDS, registry=registry
        )
        self.batches = Histogram(
            "qpr_batch_queries", "Queries of a batch.", buckets=_SIZES, registry=registry
        )
        self.questions = Gauge("qpr_questions", "Questions that can be found.", registry=registry)
        self.ready = Gauge("qpr_ready", "1 where it can search, else 0.", registry=registry)
        self.opened = Gauge(
            "qpr_index_opened_timestamp_seconds",
            "When the index that is searched was opened, as a Unix time.",
            registry=registry,
        )
        self.reloads = Counter(
            "qpr_reloads", "Reloads of the index: ok, or failed.", ["result"], registry=registry
        )
        for result in ("ok", "failed"):  # an alert sees the first one, too
            self.reloads.labels(result)


class Observer:
    """The outermost ASGI application: gives each request an id, and notes how it was answered.

    Each answer has the headers `X-Request-ID`, which is the client's own if it is 1 to 128
    printable ASCII characters without blanks, and `X-QPR-Version`.
    """

    def __init__(
        self,
        app: Any,
        metrics: ServerMetrics,
        *,
        paths: Collection[str],
        access_log: Callable[[str], object] | None = None,
    ) -> None:
        """Wrap `app`.

        Args:
          paths: those with metrics of their own.
          access_log: gets a line of JSON for each request.
        """
        self._app, self._metrics, self._paths = app, metrics, paths
        self._access_log = access_log

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer a request by the other application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, size = time.perf_counter(), None, 0
        name = scope[REQUEST_ID] = _request_id(scope)

        async def send_and_note(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(b"x-request-id", name.encode()), VERSION_HEADER]
                message = message | {"headers": [*message.get("headers", []), *own]}
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - start
            self._count(scope, status, seconds)
            if self._access_log:
                self._access_log(_line(scope, name, status, seconds, size))

    def _count(self, scope: Message, status: int | None, seconds: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        if scope["path"].startswith("/questions/"):
            path = "/questions/{id}"
        method = scope["method"] if scope["method"] in ("GET", "POST", "DELETE") else "other"
        self._metrics.requests.labels(method, path, status or "gone").inc()
        self._metrics.seconds.labels(method, path).observe(seconds)


def make_request_id() -> str:
    """A new id of a request."""
    return secrets.token_hex(16)


def _request_id(scope: Message) -> str:
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    valid = len(given) == 1 and _ID.fullmatch(given[0])
    return given[0].decode() if valid else make_request_id()


def _line(scope: Message, name: str, status: int | None, seconds: float, size: int) -> str:
    """What the access log says of a request: no text of a question, nor the token."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    facts = {
        "time": now,
        "id": name,
        "client": (scope.get("client") or [None])[0],
        "method": scope["method"],
        "path": scope["path"],
        "status": status,  # null where the client was gone
        "seconds": round(seconds, 6),
        "bytes": size,
    }
    return json.dumps(facts)
