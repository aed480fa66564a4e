"""The HTTP applications of `qpr serve` and `qpr review`, each with its page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import AsyncIterator, Callable, Collection
from typing import Annotated, Any, Literal

import anyio
import jinja2
from fastapi import Depends, FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, Response

import qpr_jax
from qpr_jax.duplicates.review import Review, describe_review
from qpr_jax.errors import UserError
from qpr_jax.index.protocol import similar_id
from qpr_jax.retriever import Retriever
from qpr_jax.running import end_with_parent
from qpr_jax.serving import models
from qpr_jax.serving.live import LiveIndex
from qpr_jax.serving.middleware import (
    HANDLERS,
    LOOPBACK,
    RESPONSES,
    Json,
    RequestChecks,
    check_token,
    needs_token,
)
from qpr_jax.serving.models import CHARACTERS, Model, shorten
from qpr_jax.text.tokenizer import replace_surrogates

SETTINGS = "QPR_SERVE"  # environment variable of `create_app`
MAX_BODY = 1 << 20  # bytes
_CHOICES = {None: "by score", False: "by distance", "cross_encoder": "by the cross-encoder"}
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("qpr_jax"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_WORDS = {"yes": True, "no": False, "skip": None}


class _IdConvertor(PathConvertor):
    """Match the rest of a path: an id may have slashes and line ends."""

    regex = "(?s:.*)"


register_url_convertor("id", _IdConvertor())
PathId = Annotated[models.Id, Path(description="The id, percent-encoded.")]


class Settings(BaseModel):
    """Settings of a server; a JSON object in the environment variable QPR_SERVE."""

    model_config = ConfigDict(extra="forbid")

    folder: str = ""  # of the index, or address of a collection
    cross_encoder: str | None = None  # its folder
    token: str = ""  # clients send it to write and to reload; "" forbids both
    max_body: int = MAX_BODY  # bytes
    # Names in the `Host` header besides the loopback ones, without port; "*" allows all.
    allowed_hosts: list[str] = []
    # Web pages that may read answers in a browser (CORS), such as https://shop.example.
    allowed_origins: list[str] = []

    def open_index(self) -> Retriever:
        """Open the index of the folder."""
        return Retriever.load(self.folder, indexed=True, cross_encoder=self.cross_encoder)


def create_app() -> FastAPI:
    """Make the application of `$QPR_SERVE`: the factory for several workers.

    Exits with status 3, with which uvicorn gives up instead of starting the worker again, if the
    index cannot be opened.

        QPR_SERVE='{"folder": "my_index"}' uvicorn --factory qpr_jax.serving.app:create_app
    """
    shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")

    def on_ready(count: int) -> None:
        if shared:  # `qpr serve` waits for this file of each worker
            pathlib.Path(shared, f"ready-{os.getpid()}").touch()

    if shared:
        end_with_parent()
    try:
        settings = Settings.model_validate_json(os.environ.get(SETTINGS, "{}"))
        return make_app(settings.open_index(), settings, on_ready=on_ready)
    except (UserError, OSError, ValidationError) as error:
        print(f"error: ${SETTINGS}: {error}", file=sys.stderr)
        sys.exit(3)


def make_app(
    retriever: Retriever,
    settings: Settings | None = None,
    *,
    reload_signal: int = 0,
    on_ready: Callable[[int], object] = lambda count: None,
) -> FastAPI:
    """Make the application, which warms up when its server starts it.

    Args:
      retriever: the index to serve; it can be reloaded if the settings name its folder.
      reload_signal: a signal that reloads the index; the server must run in the main thread then.
      on_ready: called with the number of questions once the index is warm.
    """
    settings = settings or Settings()
    live = LiveIndex(retriever, settings.open_index if settings.folder else None)
    app = FastAPI(
        title="qpr_jax",
        version=qpr_jax.__version__,
        description="Finds the questions already asked that mean the same.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
        responses=RESPONSES,
        lifespan=_lifespan(live, reload_signal, on_ready),
    )
    expected = "`Authorization: Bearer TOKEN` with the server's token"
    writes = [needs_token(settings.token, expected)]
    _add_searches(app, live)
    _add_questions(app, live, writes)
    _add_operations(app, live, writes)

    async def refresh() -> None:
        await live.why_not_ready()
        await live.count()

    instrumentator = live.metrics.instrumentator().instrument(app)
    instrumentator.expose(app, dependencies=[Depends(refresh)], summary="Metrics for Prometheus.")
    app.add_middleware(
        RequestChecks, hosts=[*LOOPBACK, *settings.allowed_hosts], largest=settings.max_body
    )
    if settings.allowed_origins:  # around the checks, whose answers a page may read, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Retry-After", "X-QPR-Version", "X-Request-ID"],
        )
    return app


def _lifespan(live: LiveIndex, reload_signal: int, on_ready: Callable[[int], object]) -> Any:
    """Warm up before the first request, and stop all tasks after the last."""

    async def warm_up() -> None:
        await live.warm_up()
        on_ready(await live.count())

    async def reload() -> None:
        with contextlib.suppress(HTTPException):  # which is logged
            await live.reload()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(warm_up)
            if reload_signal:
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(reload_signal, tasks.start_soon, reload)
            yield
            tasks.cancel_scope.cancel()

    return lifespan


def _add_searches(app: FastAPI, live: LiveIndex) -> None:
    @app.post("/search", response_model=models.SearchResponse)
    async def search(body: models.SearchRequest) -> Response:
        """Find the best questions for each query."""
        return Json(await live.with_newest(lambda now: now.search(body)))

    @app.get("/search", response_model=models.SearchResponse)
    async def search_one(asked: Annotated[models.SearchQuery, Query()]) -> Response:
        """Find the best questions for one query."""
        return await search(asked.as_request())

    @app.post("/encode", response_model=models.EncodeResponse)
    async def encode(body: models.EncodeRequest) -> Response:
        """Return the vector of each question."""
        return await live.read(lambda now: Json({"vectors": now.encode(body.questions).tolist()}))


def _add_questions(app: FastAPI, live: LiveIndex, writes: list[Any]) -> None:
    @app.post("/questions", response_model=models.AddResponse, dependencies=writes)
    async def add(body: models.AddRequest) -> Response:
        """Add questions: durable, and found by searches, before this answers. Needs the token."""
        payload = False if body.payload is None else body.payload
        ids = await live.write(lambda now: now.add(body.questions, body.ids, payload))
        return Json({"ids": ids})

    @app.get("/questions/{id:id}", response_model=models.QuestionModel)
    async def get(id: PathId) -> Response:
        """Return the question of an id, and its payload."""
        (found,) = await live.read(lambda now: now.store.get([id]))
        if found is None:
            raise await _unknown(live, id)
        return Json({"id": found.id, "question": found.text, "payload": found.payload})

    @app.delete("/questions/{id:id}", status_code=204, dependencies=writes)
    async def remove(id: PathId) -> Response:
        """Remove a question, durably, before this answers. Needs the token."""
        if not await live.write(lambda now: now.remove([id], ignore_missing=True)):
            raise await _unknown(live, id)
        return Response(status_code=204)


async def _unknown(live: LiveIndex, id: models.Id) -> HTTPException:
    near = await live.read(lambda now: similar_id(now.store, id))
    return HTTPException(404, f"no question has the id {shorten(id)}{near}")


def _add_operations(app: FastAPI, live: LiveIndex, writes: list[Any]) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Answer while the process lives; see also `/ready`."""
        return {"status": "ok", "questions": await live.count()}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Answer 503 while the server warms up, and while a search fails."""
        if reason := await live.why_not_ready():
            raise HTTPException(503, reason, {"Retry-After": "1"})
        return {"status": "ready"}

    @app.post("/reload", dependencies=writes)
    async def reload() -> dict[str, Any]:
        """Open the index of the folder again, while requests are answered. Needs the token.

        The old index stays if that fails.
        """
        return await live.reload()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return await search_page(live)


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
    page = replace_surrogates(_TEMPLATES.get_template(template).render(values))

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

    def refuse_stale() -> None:
        if said := review.stale():
            raise HTTPException(409, said)

    tokens = [needs_token(token, expected), Depends(refuse_stale)]

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
