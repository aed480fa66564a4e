"""How the service answers exceptions: a status and {"error": LINE}."""

from __future__ import annotations

import errno
import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.serving.batching import BusyError
from qpr_jax.serving.middleware import REQUEST_ID, error_response
from qpr_jax.serving.models import Error, shorten

log = logging.getLogger("qpr_jax")

# Settings of a UserError that are fields of requests: the client made a mistake.
FIELDS = {"queries", "questions", "k", "rerank", "ids", "id", "payload"}
_RETRY = {"Retry-After": "1"}
RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "A mistake of the client."},
    "5XX": {"model": Error, "description": "A failure of the server."},
}


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised an exception of `HANDLERS`."""
    status, line, headers = _describe(request, error)
    return error_response(status, line, headers)


HANDLERS: dict[Any, Any] = dict.fromkeys(
    (RequestValidationError, HTTPException, BusyError, UserError, OSError), answer_error
)


def _describe(request: Request, error: Exception) -> tuple[int, str, Any]:
    """The status, the line and the headers of an answer."""
    match error:
        case RequestValidationError():
            return 422, _first_error(error), None
        case HTTPException(detail="Not Found"):
            line = f"no such path: {shorten(request.url.path)}; see /openapi.json"
            return 404, line, error.headers
        case HTTPException(detail="Method Not Allowed"):
            line = f"{shorten(request.method)} is not possible here; see /openapi.json"
            return 405, line, error.headers
        case HTTPException():
            return error.status_code, error.detail, error.headers
        case BusyError():
            return 429, "too many requests are waiting; try again later", _RETRY
        case UserError(setting=field) if field in FIELDS:
            return 422, str(error), None
    # The request was valid: the fault is in the index folder, the store or the disk.
    name = request.scope.get(REQUEST_ID, "")
    log.error("%s %s %s: %s", name, request.method, shorten(request.url.path), error)
    if isinstance(error, UnavailableError):
        return 503, "the index does not answer; try again", _RETRY
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return 507, "not written: the server's disk is full", None
    return 503, "the server cannot use its index; see its log", None


def _first_error(error: RequestValidationError) -> str:
    """The first error of a request, in one line."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"expected JSON ({first['ctx']['error']} at character {first['loc'][-1]})"
    if first["type"] == "whole":
        return str(first["msg"])
    where = ".".join(map(shorten, first["loc"][1:])) or "body"
    no_value = first["type"] in ("missing", "blank")
    return f"`{where}`: {first['msg']}" + ("" if no_value else f", got {shorten(first['input'])}")
