"""Around the application: request ids, checks of hosts and bodies, and answers to exceptions."""

from __future__ import annotations

import errno
import json
import logging
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import qpr_jax
from qpr_jax.errors import UnavailableError, UserError, did_you_mean
from qpr_jax.serving.models import Error, shorten

log = logging.getLogger("qpr_jax")

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# A UserError that begins with a field of requests is a mistake of the client.
FIELDS = ("`queries`", "`questions`", "`k`", "`rerank`", "`ids`", "`payload`")
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "A mistake of the client."},
    "5XX": {"model": Error, "description": "A failure of the server."},
}

_BEARER = HTTPBearer(scheme_name="token", auto_error=False)
_NAME = "qpr_jax.request_id"  # key of the scope
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(?::[0-9]*)?")


class Json(JSONResponse):
    """JSON in ASCII, because a text may have a lone surrogate; bytes go out as they are."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return content if isinstance(content, bytes) else json.dumps(content).encode()


def error_response(status: int, line: str, headers: Mapping[str, str] | None = None) -> Json:
    """Make the answer {"error": line}."""
    return Json({"error": line}, status, headers)


def check_token(sent: str, token: str, expected: str) -> None:
    """Raise the HTTPException 401, which says what is expected, for another token."""
    if not secrets.compare_digest(sent.strip().encode(), token.encode()):
        raise HTTPException(401, f"expected {expected}", {"WWW-Authenticate": "Bearer"})


def needs_token(token: str, expected: str) -> Any:
    """Return a dependency that answers 401 or 403 unless the request has the token."""

    async def check(sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        if not token:
            raise HTTPException(403, "writing is off: the server was started without a token")
        check_token(sent.credentials if sent else "", token, expected)

    return Depends(check)


class RequestChecks:
    """Give each request an id, refuse wrong hosts and bodies, and answer 500 to an exception.

    Each answer names the version and the request, and forbids a browser to guess its type. The id
    is the client's own if it has 1 to 128 printable ASCII characters without blanks, else a new
    one. A web page whose domain name was pointed at this server (DNS rebinding) could read answers
    through a visitor's browser if any host were allowed.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] = LOOPBACK, largest: int) -> None:
        """hosts: allowed names, without ports; "*" allows all. largest: bytes of a body."""
        self._app, self._largest = app, largest
        self._hosts = None if "*" in hosts else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer 400, 413, 415 or 500."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, size, started = Headers(scope=scope), 0, False
        ids = headers.getlist("x-request-id")
        valid = len(ids) == 1 and _REQUEST_ID.fullmatch(ids[0])
        name = ids[0] if valid else secrets.token_hex(16)
        # The server drops the body of the answer to HEAD.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._largest:
                raise HTTPException(413, f"expected a body of at most {self._largest:,} bytes")
            return message

        async def named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(
                    {
                        "X-Request-ID": name,
                        "X-QPR-Version": qpr_jax.__version__,
                        "X-Content-Type-Options": "nosniff",
                    }
                )
            await send(message)

        refused = self._wrong_host(headers.getlist("host")) or _wrong_body(headers)
        try:
            await (refused or self._app)({**scope, "method": method, _NAME: name}, counted, named)
        except Exception:
            log.exception("%s %s %s failed", name, scope["method"], shorten(scope["path"]))
            if not started:
                answer = error_response(500, "the server failed; see its log")
                await answer(scope, receive, named)

    def _wrong_host(self, hosts: list[str]) -> Response | None:
        """Return the answer to a request to these hosts if it is refused."""
        match = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if self._hosts is None or (match is not None and match[1] in self._hosts):
            return None
        got = shorten(", ".join(hosts)) or "none"
        line = f"host not allowed: {got}; start the server with --allowed-host NAME"
        return error_response(400, line)


def _wrong_body(headers: Headers) -> Response | None:
    """Return the answer to a request whose body is not read, by its headers."""
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    kind = headers.get("content-type", "none").partition(";")[0].strip().lower()
    if not has_body:
        return None
    if (packed := headers.get("content-encoding", "identity").strip().lower()) != "identity":
        return error_response(415, f"expected no Content-Encoding, got {shorten(packed)}")
    if kind == "application/json":
        return None
    return error_response(415, f"expected Content-Type: application/json, got {shorten(kind)}")


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised an exception of `HANDLERS`."""
    match error:
        case RequestValidationError():
            return error_response(422, _first_error(error))
        case HTTPException(status_code=404, detail="Not Found"):  # by no route
            routes = (getattr(route, "path", "/") for route in request.app.routes)
            paths = sorted({path.replace("{id:id}", "ID") for path in routes})
            near = did_you_mean(request.url.path, paths)
            line = f"no path {shorten(request.url.path)}{near}; there are {', '.join(paths)}"
            return error_response(404, line)
        case HTTPException(status_code=405):
            line = f"expected the method {(error.headers or {})['Allow']}, got {request.method}"
            return error_response(405, line, error.headers)
        case HTTPException():
            return error_response(error.status_code, error.detail, error.headers)
        case UserError() if str(error).startswith(FIELDS):
            # The remedy is for programs in Python.
            return error_response(422, str(error).removesuffix(f"; {error.remedy}"))
    # The request was valid: the fault is in a folder, the store or the disk.
    name = request.scope.get(_NAME, "")
    log.error("%s %s %s: %s", name, request.method, shorten(request.url.path), error)
    if isinstance(error, UnavailableError):
        line = "the index does not answer; try again"
        return error_response(503, line, {"Retry-After": "1"})
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return error_response(507, "not written: the server's disk is full")
    return error_response(503, "the server cannot use its files; see its log")


HANDLERS: dict[Any, Any] = dict.fromkeys(
    (RequestValidationError, HTTPException, UserError, OSError), answer_error
)


def _first_error(error: RequestValidationError) -> str:
    """Return the first error of a request, in one line."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"expected JSON ({first['ctx']['error']} at character {first['loc'][-1]})"
    if first["type"] == "whole":
        return str(first["msg"])
    where = ".".join(map(shorten, first["loc"][1:])) or "body"
    if first["type"] == "extra_forbidden":
        return f"`{where}`: this request has no such field"
    got = "" if first["type"] == "missing" else f", got {shorten(first['input'])}"
    return f"`{where}`: {first['msg']}{got}"
