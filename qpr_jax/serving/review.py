"""The page of a review: one pair at a time, and what the verdicts so far imply."""

from __future__ import annotations

import importlib.resources
import json
import secrets
from collections.abc import Collection
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qpr_jax.duplicates.review import Review, describe_review
from qpr_jax.serving.guard import LOOPBACK, Guard
from qpr_jax.serving.limits import Limits
from qpr_jax.serving.page import page_headers

_WORDS = {"yes": True, "no": False, "skip": None}
_LIMITS = Limits(body=10_000, concurrent=16)


def make_review_app(
    review: Review, *, token: str, allowed_hosts: Collection[str] = LOOPBACK
) -> Any:
    """The ASGI application of a review, which one person uses.

    GET /?token=TOKEN is the page and GET /review the state; POST /verdict {"pair": KEY, "verdict":
    "yes", "no" or "skip"} and POST /undo {} change it and answer with the new state. A verdict on
    another pair than the current one, from a second tab say, is answered with 409 and kept by
    nobody.

    Args:
      review: what is shown and changed; a change is written before it is answered, and the next
        request waits for that.
      token: that every request must have, in the address of the page and as `Authorization: Bearer
        TOKEN` of the others; other users of the machine could else read texts and give verdicts.
      allowed_hosts: names allowed in the `Host` header, without port; "*" allows all.
    """
    page = importlib.resources.files("qpr_jax.serving").joinpath("review.html").read_text("utf-8")
    headers = page_headers(page) | {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

    async def show_page(request: Request) -> Response:
        _require_token(request.query_params.get("token", ""), token)
        return Response(page, headers=headers, media_type="text/html")

    async def show_state(request: Request) -> Response:
        _require_token(_bearer(request), token)
        return _state(review)

    async def judge(request: Request) -> Response:
        _require_token(_bearer(request), token)
        body = await _read_json(request)
        key, word = str(body.get("pair")), body.get("verdict")
        if not isinstance(word, str) or word not in _WORDS:
            raise HTTPException(422, "`verdict`: expected yes, no or skip")
        if not (key.isascii() and key.isdigit() and review.judge(int(key[:30]), _WORDS[word])):
            raise HTTPException(409, "another pair is asked now; the page shows it")
        return _state(review)

    async def undo(request: Request) -> Response:
        _require_token(_bearer(request), token)
        await _read_json(request)
        if not review.undo():
            raise HTTPException(409, "there is no verdict to take back")
        return _state(review)

    routes = [
        Route("/", show_page),
        Route("/review", show_state),
        Route("/verdict", judge, methods=["POST"]),
        Route("/undo", undo, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _answer, OSError: _answer})
    return Guard(app, hosts=allowed_hosts, limits=_LIMITS)


def _state(review: Review) -> Response:
    # ASCII, because a text may have a lone surrogate.
    content = json.dumps(describe_review(review), allow_nan=False).encode()
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")


def _bearer(request: Request) -> str:
    """The token that a request has, or ""."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else ""


def _require_token(given: str, token: str) -> None:
    """Raise the exception for 401 unless the token is the server's."""
    if not secrets.compare_digest(given.encode(), token.encode()):
        line = "expected the token of the address that `qpr review` printed"
        raise HTTPException(401, line, {"WWW-Authenticate": "Bearer"})


async def _read_json(request: Request) -> dict[str, Any]:
    """The object of a body."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected a body of the type application/json")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(422, "expected a JSON object")
    return body


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": f"the verdict was not written ({error})"}, 507)
