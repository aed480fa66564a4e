"""The review page: one pair at a time, and the threshold that the verdicts imply."""

from __future__ import annotations

import importlib.resources
import json
import secrets
from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from qpr_jax.duplicates.review import Review, describe_review
from qpr_jax.serving.failures import HANDLERS
from qpr_jax.serving.middleware import LOOPBACK, RequestChecks, RequestLog, error_response
from qpr_jax.serving.models import Model
from qpr_jax.serving.page import page_headers

_WORDS = {"yes": True, "no": False, "skip": None}


class Verdict(Model):
    """A verdict on a pair, which its key names."""

    pair: str
    verdict: Literal["yes", "no", "skip"]


class Undo(Model):
    """Nothing; a body of JSON, which no form of another site can send."""


def make_review_app(
    review: Review, *, token: str, allowed_hosts: Collection[str] = LOOPBACK
) -> FastAPI:
    """Make the application of a review, which one person uses.

    GET /?token=TOKEN is the page and GET /review the state; POST /verdict {"pair": KEY, "verdict":
    "yes", "no" or "skip"} and POST /undo {} change it and answer the new state. A verdict on
    another pair than the current one, for example from a second tab, is refused with 409.

    Args:
      review: what is shown and changed; a change is on disk before it is answered, and the next
        request waits for that.
      token: every request must have it: in the address of the page, and as `Authorization: Bearer
        TOKEN` elsewhere. Other users of the machine could otherwise read texts and give verdicts.
      allowed_hosts: names allowed in the `Host` header, without port; "*" allows all.
    """
    page = importlib.resources.files("qpr_jax.serving").joinpath("review.html").read_text("utf-8")
    headers = page_headers(page) | {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS | {OSError: _answer_full_disk},
    )

    def check(given: str) -> None:
        if not secrets.compare_digest(given.encode(), token.encode()):
            line = "expected the token of the address that `qpr review` printed"
            raise HTTPException(401, line, {"WWW-Authenticate": "Bearer"})

    async def check_bearer(authorization: Annotated[str, Header()] = "") -> None:
        kind, _, given = authorization.partition(" ")
        check(given.strip() if kind.lower() == "bearer" else "")

    needs_token = [Depends(check_bearer)]

    # Not in threads: a request waits until the one before it is on disk.
    @app.get("/")
    async def show_page(token: str = "") -> Response:
        check(token)
        return Response(page, headers=headers, media_type="text/html")

    @app.get("/review", dependencies=needs_token)
    async def show_state() -> Response:
        return _state(review)

    @app.post("/verdict", dependencies=needs_token)
    async def judge(body: Verdict) -> Response:
        known = body.pair.isascii() and body.pair.isdigit() and len(body.pair) < 50
        if not (known and review.judge(int(body.pair), _WORDS[body.verdict])):
            raise HTTPException(409, "another pair is asked now; the page shows it")
        return _state(review)

    @app.post("/undo", dependencies=needs_token)
    async def undo(body: Undo) -> Response:
        if not review.undo():
            raise HTTPException(409, "there is no verdict to take back")
        return _state(review)

    app.add_middleware(RequestChecks, hosts=allowed_hosts, largest=10_000)
    app.add_middleware(RequestLog)
    return app


def _state(review: Review) -> Response:
    # ASCII, because a text may have a lone surrogate.
    content = json.dumps(describe_review(review), allow_nan=False).encode()
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")


async def _answer_full_disk(request: Request, error: Any) -> Response:
    return error_response(507, f"the verdict was not written ({error.strerror})")
