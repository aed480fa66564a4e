"""The HTTP service: search, encode, add, remove, health, metrics, and one page to try it."""

# Not `from __future__ import annotations`: FastAPI reads the models that are made in `make_app`.

import asyncio
import base64
import hashlib
import hmac
import importlib.resources
import json
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route

import qpr_jax
from qpr_jax.errors import UserError
from qpr_jax.retriever import Retriever
from qpr_jax.serving.batching import Batcher
from qpr_jax.serving.guard import Guard, Measures


@dataclass(frozen=True)
class Limits:
    """What a request may ask for; more is answered by 4xx.

    body: bytes. k: questions a query. characters: of a question. questions: of a request.
    concurrent: requests that are answered at a time; others get 429.
    """

    body: int = 1 << 20
    k: int = 100
    characters: int = 2000
    questions: int = 1000
    concurrent: int = 256


MOST = 256  # queries of a batch


def make_app(
    retriever: Retriever, *, token: str = "", limits: Limits = Limits(), threads: int = 1
) -> Any:
    """The ASGI application.

    token: of those who may write; nobody may where it is empty. threads: that search.
    """
    measures = Measures()
    measures.questions.set_function(lambda: len(retriever))
    app = FastAPI(
        title="qpr_jax",
        version=qpr_jax.__version__,
        description="Finds the questions already asked that mean the same.",
        # Their pages load scripts from elsewhere; /openapi.json stays.
        docs_url=None,
        redoc_url=None,
    )
    _tell_errors_in_one_line(app)
    batcher = Batcher(retriever.search, threads=threads, most=MOST, seen=measures.batches.observe)
    _add_search(app, batcher, limits)
    _add_encode(app, retriever, limits)
    _add_changes(app, retriever, token, limits)
    _add_state(app, retriever, measures)
    return Guard(app, measures, body=limits.body, concurrent=limits.concurrent)


class Model(BaseModel):
    """Of what is asked and answered: nothing is converted, nothing passed over."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Found(Model):
    """A question found."""

    id: int
    question: str
    distance: Annotated[
        float, Field(description="Squared Euclidean, or the inner product times -1.")
    ]


class SearchResponse(Model):
    """Of each query, nearest first."""

    results: list[list[Found]]


class EncodeResponse(Model):
    """A vector a question."""

    vectors: list[list[float]]


class AddResponse(Model):
    """An id a question."""

    ids: list[int]


class Health(Model):
    """That it answers, and how many questions can be found."""

    status: str
    questions: int


def _add_search(app: FastAPI, batcher: Batcher, limits: Limits) -> None:
    Question = Annotated[str, Field(max_length=limits.characters)]  # noqa: N806

    class SearchRequest(Model):
        queries: Annotated[list[Question], Field(max_length=limits.questions)]
        k: Annotated[int, Field(ge=1, le=limits.k)] = 5

    @app.post("/search", response_model=SearchResponse)
    async def search(asked: SearchRequest) -> Response:
        """The questions nearest to each query."""
        found = await batcher.search(asked.queries, asked.k)
        return _json({"results": [[hit._asdict() for hit in hits] for hits in found]})

    async def search_at_once(request: Request) -> Response:
        try:
            asked = SearchRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None
        return await search(asked)

    # FastAPI's own way to `search` takes as long as the search.
    app.router.routes.insert(0, Route("/search", search_at_once, methods=["POST"]))


def _add_encode(app: FastAPI, retriever: Retriever, limits: Limits) -> None:
    Question = Annotated[str, Field(max_length=limits.characters)]  # noqa: N806

    class EncodeRequest(Model):
        questions: Annotated[list[Question], Field(max_length=limits.questions)]

    @app.post("/encode", response_model=EncodeResponse)
    async def encode(asked: EncodeRequest) -> Response:
        """The vector of each question."""
        vectors = await asyncio.to_thread(retriever.encode, asked.questions)
        return _json({"vectors": vectors.tolist()})


def _add_changes(app: FastAPI, retriever: Retriever, token: str, limits: Limits) -> None:
    writer = asyncio.Lock()  # one waits for the disk, the others in turn without a thread each
    Question = Annotated[str, Field(max_length=limits.characters)]  # noqa: N806
    Id = Annotated[int, Field(ge=0, lt=2**63)]  # noqa: N806

    class AddRequest(Model):
        questions: Annotated[list[Question], Field(max_length=limits.questions)]
        ids: Annotated[
            list[Id] | None,
            Field(description="One a question; one that is there is replaced. New ones if absent."),
        ] = None

    def may_write(authorization: Annotated[str, Header()] = "") -> None:
        if not token:
            raise HTTPException(403, "writing is off: the server was started without a token")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(
                401,
                "expected `Authorization: Bearer TOKEN` with the server's token",
                {"WWW-Authenticate": "Bearer"},
            )

    @app.post("/questions", response_model=AddResponse, dependencies=[Depends(may_write)])
    async def add(asked: AddRequest) -> Response:
        """Add questions; they are on disk, and found, when this answers. Needs the token."""
        async with writer:
            ids = await asyncio.to_thread(retriever.add, asked.questions, asked.ids)
        return _json({"ids": ids})

    @app.delete("/questions/{id}", status_code=204, dependencies=[Depends(may_write)])
    async def remove(id: Annotated[int, Path(ge=0, lt=2**63)]) -> None:
        """Remove a question; it is gone from disk, and not found, when this answers."""
        async with writer:
            gone = await asyncio.to_thread(retriever.remove, [id], ignore_missing=True)
        if not gone:
            raise HTTPException(404, f"no question has the id {id}")


def _add_state(app: FastAPI, retriever: Retriever, measures: Measures) -> None:
    page, policy = _page()

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """Whether it answers, and how many questions can be found."""
        return _json({"status": "ok", "questions": len(retriever)})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counts and times in the format of Prometheus."""
        return Response(generate_latest(measures.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    async def root() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})


def _json(value: object) -> Response:
    # ASCII, so that a lone surrogate (any string is a question) passes.
    return Response(json.dumps(value), media_type="application/json")


def _tell_errors_in_one_line(app: FastAPI) -> None:
    """All errors are answered by {"error": LINE}."""

    def told(status: int, line: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"error": line}, status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return told(422, f"expected JSON, got a body that is none ({first['ctx']['error']})")
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        return told(422, f"`{where}`: {first['msg']}")

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        return told(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(UserError)
    async def mistaken(request: Request, error: UserError) -> JSONResponse:
        return told(400, str(error))


def _page() -> tuple[str, str]:
    """The page, and a policy by which a browser loads and runs nothing but what is in it."""
    page = importlib.resources.files("qpr_jax.serving").joinpath("page.html").read_text("utf-8")

    def hashed(tag: str) -> str:
        inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed('style')}'; "
        f"script-src 'sha256-{hashed('script')}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy
