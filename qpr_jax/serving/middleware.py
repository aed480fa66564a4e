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
from collections.abc import Callable, Collection, Mapping

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

    def __init__(self, app: ASGIApp, access_log: Callable[[str], object] | None = None) -> None:
        """access_log: gets one line of JSON for each request."""
        self._app, self._access_log = app, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
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
                self._access_log(_line(scope, name, status, seconds, size))


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


def open_access_log(path: str) -> Callable[[str], object]:
    """Return what writes a line to a file, "-" for standard output; logrotate may rename it."""
    handler: logging.Handler
    try:
        if path == "-":
            handler = logging.StreamHandler(sys.stdout)
        else:
            handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        what = f"expected a file that can be written, got {path} ({error.strerror})"
        raise UserError(what, setting="access_log") from None
    access = logging.Logger("qpr_jax.access")
    access.addHandler(handler)
    return access.info


class AllowedHosts:
    """Refuse a `Host` header that is not allowed.

    A web page whose domain name was pointed at this server (DNS rebinding) could otherwise read
    answers through a visitor's browser.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK) -> None:
        """hosts: allowed names, without ports; "*" allows all."""
        self._app = app
        self._hosts = None if "*" in hosts else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer 400."""
        if scope["type"] == "http" and self._hosts is not None:
            given = Headers(scope=scope).getlist("host")
            match = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
            if match is None or match[1] not in self._hosts:
                got = shorten(", ".join(given)) or "none"
                line = f"host not allowed: {got}; start the server with --allowed-host NAME"
                await error_response(400, line)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyChecks:
    """Refuse bodies that are too large, compressed, or not JSON, by 413 and 415."""

    def __init__(self, app: ASGIApp, largest: int) -> None:
        """largest: bytes of a body."""
        self._app, self._largest = app, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or refuse its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if wrong := _wrong_body(Headers(scope=scope)):
            await error_response(415, wrong)(scope, receive, send)
            return
        size = 0

        async def receive_and_count() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._largest:
                line = f"expected a body of at most {self._largest:,} bytes"
                raise HTTPException(413, line)
            return message

        await self._app(scope, receive_and_count, send)


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
