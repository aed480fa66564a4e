"""The search page and the review page, which a browser lets load and run nothing else."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from qpr_jax.duplicates.review import Review, describe_review
from qpr_jax.errors import UserError
from qpr_jax.rendering import render
from qpr_jax.retriever import Retriever
from qpr_jax.serving.live import LiveIndex
from qpr_jax.serving.middleware import (
    HANDLERS,
    LOOPBACK,
    Json,
    RequestChecks,
    check_token,
    needs_token,
)
from qpr_jax.serving.models import CHARACTERS, Model

_CHOICES = {
    None: "by score",
    False: "by distance",
    "cross_encoder": "by the cross-encoder",
}
_WORDS = {"yes": True, "no": False, "skip": None}


async def search_page(live: LiveIndex) -> Response:
    """Make the search page, with three of the first short questions to try, all different."""

    def find_examples(retriever: Retriever) -> list[str]:
        first = (question.text for question in itertools.islice(retriever.store.questions(), 100))
        return [*dict.fromkeys(text for text in first if text.strip() and len(text) <= 80)][:3]

    examples: list[str] = []
    with contextlib.suppress(UserError, OSError):  # the page says so when it searches
        examples = await live.read(find_examples)
    orders = [(json.dumps(word), _CHOICES[word]) for word in live.served.orders]
    return _page("search_page.html", characters=CHARACTERS, orders=orders, examples=examples)


def _page(template: str, **values: Any) -> Response:
    """Render a page of which a browser runs only its own style and script."""
    page = render(template, **values).encode("utf-8", "replace").decode()  # a lone surrogate

    def hashed(tag: str) -> str:
        inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed('style')}'; "
        f"script-src 'sha256-{hashed('script')}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy}
    headers |= {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(page, headers=headers)


class Label(Model):
    """A label on a pair, which its key names."""

    pair: str
    label: Literal["yes", "no", "skip"]


def make_review_app(
    review: Review, *, token: str, allowed_hosts: Collection[str] = LOOPBACK
) -> FastAPI:
    """Make the application of a review, which one person uses.

    GET /?token=TOKEN is the page and GET /review the state; POST /label {"pair": KEY, "label":
    "yes", "no" or "skip"} and POST /undo {} change it and answer the new state. A label on
    another pair than the current one is refused with 409.

    Args:
      review: a change of it is on disk before it is answered, and the next request waits.
      token: every request must have it, since the machine may have other users: in the address of
        the page, and as `Authorization: Bearer TOKEN` elsewhere.
      allowed_hosts: names allowed in the `Host` header, without port; "*" allows all.
    """
    app = FastAPI(openapi_url=None, redirect_slashes=False, exception_handlers=HANDLERS)
    expected = "the token of the address that `qpr review` printed"
    tokens = [needs_token(token, expected)]

    def state() -> Response:
        return Json(describe_review(review), headers={"Cache-Control": "no-store"})

    # Not in threads: a request waits until the last one is on disk.
    @app.get("/")
    async def show_page(sent: Annotated[str, Query(alias="token")] = "") -> Response:
        check_token(sent, token, expected)
        return _page("review_page.html")

    @app.get("/review", dependencies=tokens)
    async def show_state() -> Response:
        return state()

    @app.post("/label", dependencies=tokens)
    async def judge(body: Label) -> Response:
        asked = review.current
        if asked is None or body.pair != str(asked):
            raise HTTPException(409, "another pair is asked now; the page shows it")
        review.judge(asked, _WORDS[body.label])
        return state()

    @app.post("/undo", dependencies=tokens)
    async def undo() -> Response:
        if not review.undo():
            raise HTTPException(409, "there is no label to take back")
        return state()

    app.add_middleware(RequestChecks, hosts=allowed_hosts, largest=10_000)
    return app
