"""The search page and the review page, which a browser lets load and run nothing else."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import secrets
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Header
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qpr_jax.duplicates.review import Review, describe_review
from qpr_jax.rendering import render
from qpr_jax.reranking.model import Rerank
from qpr_jax.retriever import Retriever
from qpr_jax.serving.middleware import HANDLERS, LOOPBACK, RequestChecks
from qpr_jax.serving.models import CHARACTERS, Model

_CHOICES = {
    None: "by score",
    False: "by distance",
    "cross_encoder": "by the cross-encoder",
}
_WORDS = {"yes": True, "no": False, "skip": None}


def find_examples(retriever: Retriever) -> list[str]:
    """Return three of the first short questions of an index, all different."""
    first = (question.text for question in itertools.islice(retriever.store.questions(), 100))
    return [*dict.fromkeys(text for text in first if text.strip() and len(text) <= 80)][:3]


def make_page(rerank: Sequence[Rerank], examples: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers.

    Args:
      rerank: the orders to choose from, the default first.
      examples: questions to try.
    """
    orders = [(json.dumps(word), _CHOICES[word]) for word in rerank]
    page = render("search_page.html", characters=CHARACTERS, orders=orders, examples=examples)
    page = page.encode("utf-8", "replace").decode()  # a lone surrogate
    return page.encode(), _headers(page)


def _headers(page: str) -> dict[str, str]:
    """Return headers that let a browser run only the style and the script of this page."""

    def hashed(tag: str) -> str:
        inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed('style')}'; "
        f"script-src 'sha256-{hashed('script')}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}


class Verdict(Model):
    """A verdict on a pair, which its key names."""

    pair: str
    verdict: Literal["yes", "no", "skip"]


class Undo(Model):
    """An empty object; a form of another site cannot send JSON."""


def make_review_app(
    review: Review, *, token: str, allowed_hosts: Collection[str] = LOOPBACK
) -> FastAPI:
    """Make the application of a review, which one person uses.

    GET /?token=TOKEN is the page and GET /review the state; POST /verdict {"pair": KEY, "verdict":
    "yes", "no" or "skip"} and POST /undo {} change it and answer the new state. A verdict on
    another pair than the current one is refused with 409.

    Args:
      review: a change of it is on disk before it is answered, and the next request waits.
      token: every request must have it, since the machine may have other users: in the address of
        the page, and as `Authorization: Bearer TOKEN` elsewhere.
      allowed_hosts: names allowed in the `Host` header, without port; "*" allows all.
    """
    page = render("review_page.html")
    headers = _headers(page) | {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=HANDLERS)

    def check(given: str) -> None:
        if not secrets.compare_digest(given.encode(), token.encode()):
            line = "expected the token of the address that `qpr review` printed"
            raise HTTPException(401, line, {"WWW-Authenticate": "Bearer"})

    async def check_bearer(authorization: Annotated[str, Header()] = "") -> None:
        kind, _, given = authorization.partition(" ")
        check(given.strip() if kind.lower() == "bearer" else "")

    needs_token = [Depends(check_bearer)]

    # Not in threads: a request waits until the last one is on disk.
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
    return app


def _state(review: Review) -> Response:
    # ASCII, because a text may have a lone surrogate.
    content = json.dumps(describe_review(review), allow_nan=False).encode()
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")
