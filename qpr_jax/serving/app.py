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

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import qpr_jax
from qpr_jax.errors import UserError
from qpr_jax.retriever import Hit, Retriever
from qpr_jax.serving import models
from qpr_jax.serving.batching import Batcher, BusyError
from qpr_jax.serving.guard import Guard, ServerMetrics
from qpr_jax.serving.models import LIMITS, Limits
from qpr_jax.serving.page import make_page

log = logging.getLogger("qpr_jax")

_MOST = 256  # queries of a batch
_WRITERS = 32  # requests that wait to write; more would leave no place for searches
_Told = Callable[[Request, Any], tuple[Any, ...]]  # status, line and headers of an error


def make_app(
    retriever: Retriever, *, token: str = "", limits: Limits = LIMITS, threads: int = 1
) -> Any:
    """The ASGI application.

    token: of those who may write; nobody may where it is empty. threads: of FAISS.
    """
    measures = ServerMetrics()
    measures.questions.set_function(lambda: len(retriever))
    # FastAPI describes the routes, Starlette alone answers: FastAPI's own way takes twice the time.
    described = FastAPI(
        title="qpr_jax",
        version=qpr_jax.__version__,
        description="Finds the questions already asked that mean the same.",
        openapi_url=None,
    )
    requests = models.requests(limits)
    _add_searches(described, retriever, requests, threads, measures)
    _add_changes(described, retriever, token, requests)
    _add_state(described, retriever, measures, limits)
    document = json.dumps(described.openapi()).encode()

    @described.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return _json(document)

    known = [route for route in described.routes if isinstance(route, APIRoute)]
    paths = sorted({route.path for route in known})
    app = Starlette(
        routes=[
            Route(route.path, route.endpoint, methods=[*(route.methods or ())]) for route in known
        ],
        exception_handlers=error_handlers(paths),
    )
    app.router.redirect_slashes = False
    return Guard(app, measures, paths=paths, body=limits.body, concurrent=limits.concurrent)


def _add_searches(
    described: FastAPI,
    retriever: Retriever,
    requests: models.Requests,
    threads: int,
    measures: ServerMetrics,
) -> None:
    batcher = Batcher(
        retriever.search, _written, threads=threads, most=_MOST, seen=measures.batches.observe
    )

    def vectors(questions: list[str]) -> bytes:
        return json.dumps({"vectors": retriever.encode(questions).tolist()}).encode()

    @described.post("/search", response_model=models.SearchResponse, **_takes(requests.search, 429))
    async def search(request: Request) -> Response:
        """The questions nearest to each query."""
        asked = requests.search.model_validate_json(await request.body())
        return _json(await batcher.search(asked.queries, asked.k))

    @described.post("/encode", response_model=models.EncodeResponse, **_takes(requests.encode, 429))
    async def encode(request: Request) -> Response:
        """The vector of each question."""
        asked = requests.encode.model_validate_json(await request.body())
        return _json(await asyncio.to_thread(vectors, asked.questions))


def _add_changes(
    described: FastAPI, retriever: Retriever, token: str, requests: models.Requests
) -> None:
    writer = asyncio.Lock()  # one waits for the disk, the others in turn without a thread each
    waiting = 0

    def require_token(request: Request) -> None:
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

    security = [Depends(HTTPBearer(scheme_name="token"))]  # for the document
    refused = (401, 403, 429, 503, 507)
    wanted = {"name": "id", "in": "path", "required": True, "schema": models.ID}

    @described.post(
        "/questions",
        response_model=models.AddResponse,
        dependencies=security,
        **_takes(requests.add, *refused),
    )
    async def add(request: Request) -> Response:
        """Add questions; they are on disk, and found, when this answers. Needs the token."""
        require_token(request)
        asked = requests.add.model_validate_json(await request.body())
        ids = await write(lambda: retriever.add(asked.questions, asked.ids))
        return _json(json.dumps({"ids": ids}).encode())

    @described.delete(
        "/questions/{id}",
        status_code=204,
        dependencies=security,
        responses=models.errors(404, 422, *refused),
        openapi_extra={"parameters": [wanted]},
    )
    async def remove(request: Request) -> Response:
        """Remove a question; it is gone from disk, and not found, when this answers."""
        require_token(request)
        given = request.path_params["id"]
        if not re.fullmatch(models.ID["pattern"], given, re.ASCII) or int(given) >= 2**63:
            raise HTTPException(422, f"`id`: expected 0 to 2^63 - 1, got {models.shortened(given)}")
        if not await write(lambda: retriever.remove([int(given)], ignore_missing=True)):
            raise HTTPException(404, f"no question has the id {given}")
        return Response(status_code=204)


def _add_state(
    described: FastAPI, retriever: Retriever, measures: ServerMetrics, limits: Limits
) -> None:
    page, headers = make_page(k=limits.k, characters=limits.characters)

    @described.get("/health", response_model=models.Health)
    async def health(request: Request) -> Response:
        """Whether it answers, and how many questions can be found."""
        return JSONResponse({"status": "ok", "questions": len(retriever)})

    text = {200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}}

    @described.get("/metrics", response_class=Response, responses=text)  # type: ignore[arg-type]
    async def metrics(request: Request) -> Response:
        """Counts and times in the format of Prometheus."""
        told = await asyncio.to_thread(generate_latest, measures.registry)
        return Response(told, media_type=CONTENT_TYPE_LATEST)

    @described.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        return Response(page, headers=headers, media_type="text/html")


def _takes(request: type[models.Model], *refused: int) -> dict[str, Any]:
    """What the OpenAPI document says of a route whose function reads the body itself."""
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


def error_handlers(paths: list[str]) -> dict[Any, Any]:
    """Handlers of all errors, which answer {"error": LINE}."""
    handlers = {}

    def on(kind: type[Exception]) -> Callable[[_Told], _Told]:
        def add(told: _Told) -> _Told:
            async def handler(request: Request, error: Exception) -> Response:
                status, line, *headers = told(request, error)
                return JSONResponse({"error": line}, status, *headers)

            handlers[kind] = handler
            return told

        return add

    @on(ValidationError)
    def invalid(request: Request, error: ValidationError) -> tuple[Any, ...]:
        return 422, models.told(error)

    @on(HTTPException)
    def refused(request: Request, error: HTTPException) -> tuple[Any, ...]:
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

    return handlers
