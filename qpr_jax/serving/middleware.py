"""Checks around the application: hosts, bodies, request ids, the access log and failures."""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import re
import secrets
import sys
import time
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import qpr_jax
from qpr_jax.errors import UserError
from qpr_jax.serving.models import shorten

log = logging.getLogger("qpr_jax")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
REQUEST_ID = "qpr_jax.request_id"  # key of the scope

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(?::[0-9]*)?")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def error_response(status: int, line: str, headers: Mapping[str, str] | None = None) -> Response:
    """Make the answer {"error": line}, in ASCII, because the line may quote anything."""
    body = json.dumps({"error": line})
    return Response(body, status, headers, media_type="application/json")


class RequestLog:
    """Give each request an id, log it, and answer 500 if the application raises an exception.

    Each answer has the headers `X-Request-ID` and `X-QPR-Version`. The id is the client's own if it
    has 1 to 128 printable ASCII characters without blanks, else a new one.
    """

    def __init__(self, app: ASGIApp, access_log: logging.Handler | None = None) -> None:
        """access_log: gets one line of JSON for each request."""
        self._app, self._access_log = app, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            if self._access_log:  # the application has shut down
                self._access_log.close()
            return
        start, status, size = time.perf_counter(), None, 0
        name = _request_id(scope)
        # The server drops the body of the answer to HEAD.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]

        async def send_and_count(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = name
                headers["X-QPR-Version"] = qpr_jax.__version__
            size += len(message.get("body", b""))
            await send(message)

        inner = {**scope, "method": method, REQUEST_ID: name}
        try:
            await self._app(inner, receive, send_and_count)
        except Exception:
            log.exception("%s %s %s failed", name, scope["method"], shorten(scope["path"]))
            if status is None:
                answer = error_response(500, "the server failed; see its log")
                await answer(scope, receive, send_and_count)
        finally:
            if self._access_log:
                seconds = time.perf_counter() - start
                line = _line(scope, name, status, seconds, size)
                self._access_log.handle(logging.makeLogRecord({"msg": line}))


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).getlist("x-request-id")
    valid = len(given) == 1 and _REQUEST_ID.fullmatch(given[0])
    return given[0] if valid else secrets.token_hex(16)


def _line(scope: Scope, name: str, status: int | None, seconds: float, size: int) -> str:
    """The access log's line of a request, without texts and tokens."""
    facts = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "id": name,
        "client": (scope.get("client") or [None])[0],
        "method": scope["method"],
        "path": scope["path"],
        "status": status,  # null if the client disconnected
        "seconds": round(seconds, 6),
        "bytes": size,
    }
    return json.dumps(facts)


def open_access_log(path: str) -> logging.Handler | None:
    """Open a file, which logrotate may rename; "-" is standard output, "" is none."""
    if not path:
        return None
    try:
        if path == "-":
            return logging.StreamHandler(sys.stdout)
        return logging.handlers.WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        what = f"expected a file that can be written, got {path} ({error.strerror})"
        raise UserError(what, setting="access_log") from None


class RequestChecks:
    """Refuse hosts that are not allowed, and bodies that are too large, compressed or not JSON.

    A web page whose domain name was pointed at this server (DNS rebinding) could otherwise read
    answers through a visitor's browser.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] = LOOPBACK, largest: int) -> None:
        """hosts: allowed names, without ports; "*" allows all. largest: bytes of a body."""
        self._app, self._largest = app, largest
        self._hosts = None if "*" in hosts else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer 400, 413 or 415."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if line := self._wrong_host(headers.getlist("host")):
            await error_response(400, line)(scope, receive, send)
            return
        if line := _wrong_body(headers):
            await error_response(415, line)(scope, receive, send)
            return
        size = 0

        async def receive_and_count() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._largest:
                raise HTTPException(413, f"expected a body of at most {self._largest:,} bytes")
            return message

        await self._app(scope, receive_and_count, send)

    def _wrong_host(self, given: list[str]) -> str:
        """Say why a request to these hosts is refused; "" if it is not."""
        match = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if self._hosts is None or (match is not None and match[1] in self._hosts):
            return ""
        got = shorten(", ".join(given)) or "none"
        return f"host not allowed: {got}; start the server with --allowed-host NAME"


def _wrong_body(headers: Headers) -> str:
    """Say why a body with these headers is not read, "" if it is."""
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return ""
    if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
        return f"expected a body without Content-Encoding, got {shorten(encoding)}"
    kind = headers.get("content-type", "none").partition(";")[0].strip().lower()
    if kind != "application/json":
        return f"expected Content-Type: application/json, got {shorten(kind)}"
    return ""
