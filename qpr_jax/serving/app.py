"""The HTTP service: search, encode, add, remove, health, metrics, and one page to try it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

import qpr_jax
from qpr_jax.errors import UserError
from qpr_jax.retriever import Hit, Retriever
from qpr_jax.serving import models
from qpr_jax.serving.batching import Batcher, BusyError
from qpr_jax.serving.guard import Guard, Measures
from qpr_jax.serving.models import LIMITS, Limits
from qpr_jax.serving.page import make_page

log = logging.getLogger("qpr_jax")

_MOST = 256  # queries of a batch
_WRITERS = 32  # requests that wait to write; more would leave no place for searches
_Told = Callable[[Request, Any], tuple[Any, ...]]  # status, line and headers of an error
_ID = re.compile("0|[1-9][0-9]{0,18}", re.ASCII)


def make_app(
    retriever: Retriever, *, token: str = "", limits: Limits = LIMITS, threads: int = 1
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
        redirect_slashes=False,
    )
    requests = models.requests(limits)
    _add_searches(app, retriever, requests, threads, measures)
    _add_changes(app, retriever, token, requests)
    _add_state(app, retriever, measures, limits)
    paths = {route.path for route in app.routes}  # type: ignore[attr-defined]
    _tell_errors_in_one_line(app, sorted(paths))
    return Guard(app, measures, paths=paths, body=limits.body, concurrent=limits.concurrent)


def _add_searches(
    app: FastAPI,
    retriever: Retriever,
    requests: models.Requests,
    threads: int,
    measures: Measures,
) -> None:
    batcher = Batcher(
        retriever.search, _written, threads=threads, most=_MOST, seen=measures.batches.observe
    )

    def vectors(questions: list[str]) -> bytes:
        return json.dumps({"vectors": retriever.encode(questions).tolist()}).encode()

    @app.post("/search", response_model=models.SearchResponse, **_takes(requests.search, 429))
    async def search(request: Request) -> Response:
        """The questions nearest to each query."""
        asked = requests.search.model_validate_json(await request.body())
        return _json(await batcher.search(asked.queries, asked.k))

    @app.post("/encode", response_model=models.EncodeResponse, **_takes(requests.encode, 429))
    async def encode(request: Request) -> Response:
        """The vector of each question."""
        asked = requests.encode.model_validate_json(await request.body())
        return _json(await asyncio.to_thread(vectors, asked.questions))


def _add_changes(app: FastAPI, retriever: Retriever, token: str, requests: models.Requests) -> None:
    writer = asyncio.Lock()  # one waits for the disk, the others in turn without a thread each
    waiting = 0

    async def may_write(request: Request) -> None:
        if not token:
            raise HTTPException(403, "writing is off: the server was started without a token")
        given = request.headers.getlist("authorization")
        scheme, _, value = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not secrets.compare_digest(
            value.strip().encode(), token.encode()
        ):
            raise HTTPException(
                401,
                "expected `Authorization: Bearer TOKEN` with the server's token",
                {"WWW-Authenticate": "Bearer"},
            )

    async def write(change: Callable[[], Any]) -> Any:
        nonlocal waiting
        if waiting >= _WRITERS:
            raise BusyError
        waiting += 1
        try:
            async with writer:
                return await asyncio.to_thread(change)
        finally:
            waiting -= 1

    needs = [Depends(may_write), Depends(HTTPBearer(auto_error=False, scheme_name="token"))]
    refused = (401, 403, 429, 503, 507)

    @app.post(
        "/questions",
        response_model=models.AddResponse,
        dependencies=needs,
        **_takes(requests.add, *refused),
    )
    async def add(request: Request) -> Response:
        """Add questions; they are on disk, and found, when this answers. Needs the token."""
        asked = requests.add.model_validate_json(await request.body())
        ids = await write(lambda: retriever.add(asked.questions, asked.ids))
        return _json(json.dumps({"ids": ids}).encode())

    @app.delete(
        "/questions/{id}",
        status_code=204,
        dependencies=needs,
        responses=models.errors(404, 422, *refused),
    )
    async def remove(id: str) -> None:
        """Remove a question; it is gone from disk, and not found, when this answers."""
        if not _ID.fullmatch(id) or int(id) >= 2**63:
            raise HTTPException(422, f"`id`: expected 0 to 2^63 - 1, got {models.shortened(id)}")
        if not await write(lambda: retriever.remove([int(id)], ignore_missing=True)):
            raise HTTPException(404, f"no question has the id {id}")


def _add_state(app: FastAPI, retriever: Retriever, measures: Measures, limits: Limits) -> None:
    page, headers = make_page(k=limits.k, characters=limits.characters)

    @app.get("/health", response_model=models.Health)
    async def health(request: Request) -> Response:
        """Whether it answers, and how many questions can be found."""
        return JSONResponse({"status": "ok", "questions": len(retriever)})

    text = {200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}}

    @app.get("/metrics", response_class=Response, responses=text)  # type: ignore[arg-type]
    async def metrics() -> Response:
        """Counts and times in the format of Prometheus."""
        told = await asyncio.to_thread(generate_latest, measures.registry)
        return Response(told, media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        return Response(page, headers=headers, media_type="text/html")

    app.add_route("/health", health, methods=["HEAD"], include_in_schema=False)
    app.add_route("/", root, methods=["HEAD"], include_in_schema=False)


def _takes(request: type[models.Model], *refused: int) -> dict[str, Any]:
    """What the OpenAPI document says of a route whose function reads the body itself.

    FastAPI's own reading takes a good part of the time of a search.
    """
    body = {"content": {"application/json": {"schema": request.model_json_schema()}}}
    return {
        "openapi_extra": {"requestBody": body | {"required": True}},
        "responses": models.errors(408, 413, 422, *refused),
    }


def _written(found: list[list[Hit]]) -> bytes:
    # ASCII, so that a lone surrogate (any string is a question) passes.
    return json.dumps({"results": [[hit._asdict() for hit in hits] for hits in found]}).encode()


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _tell_errors_in_one_line(app: FastAPI, paths: list[str]) -> None:
    """All errors are answered by {"error": LINE}."""

    def on(kind: type[Exception]) -> Callable[[_Told], _Told]:
        def add(told: _Told) -> _Told:
            async def handler(request: Request, error: Exception) -> Response:
                status, line, *headers = told(request, error)
                return JSONResponse({"error": line}, status, *headers)

            app.add_exception_handler(kind, handler)
            return told

        return add

    @on(ValidationError)
    def invalid(request: Request, error: ValidationError) -> tuple[Any, ...]:
        return 422, models.told(error)

    @on(StarletteHTTPException)
    def refused(request: Request, error: StarletteHTTPException) -> tuple[Any, ...]:
        line = str(error.detail)
        if line == "Not Found":
            line = f"expected one of {', '.join(paths)}; got {models.shortened(request.url.path)}"
        if error.status_code == 405:
            line = f"expected {(error.headers or {}).get('Allow')}, got {request.method}"
        return error.status_code, line, error.headers

    @on(BusyError)
    def busy(request: Request, error: BusyError) -> tuple[Any, ...]:
        return 429, "too much waits to be searched or written; wait", {"Retry-After": "1"}

    @on(UserError)
    @on(OSError)
    def broken(request: Request, error: Exception) -> tuple[Any, ...]:
        # What a client may get wrong is refused before; this is between the server and its disk.
        log.error("%s %s: %s", request.method, request.url.path, error)
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return 507, "not written: the server's disk is full"
        return 503, "not done: the server cannot use its index; its log says why"

    @on(Exception)
    def bug(request: Request, error: Exception) -> tuple[Any, ...]:
        return 500, "the server failed; its log says why"  # which uvicorn writes
