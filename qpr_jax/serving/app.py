"""The HTTP service: search, encode, add, remove, health, metrics, and one page to try it."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import qpr_jax
from qpr_jax.errors import UserError
from qpr_jax.reranking.base import Rerank
from qpr_jax.retriever import Hit, Retriever
from qpr_jax.serving import models
from qpr_jax.serving.batching import Batcher, BusyError
from qpr_jax.serving.guard import LOOPBACK, Guard, ServerMetrics
from qpr_jax.serving.models import LIMITS, Limits
from qpr_jax.serving.page import make_page

log = logging.getLogger("qpr_jax")

_BATCH_QUERIES = 256
_WAITING_WRITERS = 32  # of the concurrent requests; the rest is left for searches


class _IdConvertor(PathConvertor):
    """The end of a path, whatever it has: an id may have slashes and line ends."""

    regex = "(?s:.*)"


register_url_convertor("id", _IdConvertor())


def make_app(
    retriever: Retriever,
    *,
    token: str = "",
    limits: Limits = LIMITS,
    threads: int = 1,
    allowed_hosts: Collection[str] = LOOPBACK,
) -> Any:
    """The ASGI application.

    Args:
      token: clients must send it to write; without one nobody can.
      threads: threads of FAISS.
      allowed_hosts: names allowed in the `Host` header, without port; "*" allows all.
    """
    metrics = ServerMetrics()
    metrics.questions.set_function(lambda: len(retriever))
    # FastAPI only describes the routes; Starlette answers them, which takes half the time.
    described = FastAPI(
        title="qpr_jax",
        version=qpr_jax.__version__,
        description="Finds the questions already asked that mean the same.",
        openapi_url=None,
    )
    requests = models.requests(limits)
    _add_searches(described, retriever, requests, threads, metrics)
    _add_changes(described, retriever, token, requests)
    _add_state(described, retriever, metrics, limits)
    document = json.dumps(described.openapi()).encode()

    @described.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return _json(document)

    routes = [route for route in described.routes if isinstance(route, APIRoute)]
    paths = sorted({route.path_format for route in routes})
    answers = [Route(r.path, r.endpoint, methods=[*(r.methods or ())]) for r in routes]
    app = Starlette(routes=answers, exception_handlers=error_handlers(paths))
    app.router.redirect_slashes = False
    return Guard(app, metrics, paths=paths, hosts=allowed_hosts, limits=limits)


def _add_searches(
    described: FastAPI,
    retriever: Retriever,
    requests: models.Requests,
    threads: int,
    metrics: ServerMetrics,
) -> None:
    def batcher(rerank: Rerank) -> Batcher:
        return Batcher(
            functools.partial(retriever.search, rerank=rerank),
            _search_json,
            max_queries=models.CROSS_QUERIES if rerank == "cross_encoder" else _BATCH_QUERIES,
            threads=threads,
            on_batch=metrics.batches.observe,
        )

    # One for each order, so that no batch has two, and none waits for a cross-encoder.
    batchers: dict[Rerank, Batcher] = {}

    def encode_json(questions: list[str]) -> bytes:
        return json.dumps({"vectors": retriever.encode(questions).tolist()}).encode()

    @described.post("/search", **_bodies(requests.search, models.SearchResponse, 429))
    async def search(request: Request) -> Response:
        """The best questions for each query."""
        body = requests.search.model_validate_json(await request.body())
        try:
            word = retriever.second_stages.choose(body.rerank, retriever.index)
        except UserError as error:
            raise HTTPException(422, f"`rerank`: {error.what}") from None
        if word not in batchers:
            batchers[word] = batcher(word)
        return _json(await batchers[word].search(body.queries, body.k))

    @described.post("/encode", **_bodies(requests.encode, models.EncodeResponse, 429))
    async def encode(request: Request) -> Response:
        """The vector of each question."""
        body = requests.encode.model_validate_json(await request.body())
        return _json(await asyncio.to_thread(encode_json, body.questions))


def _add_changes(
    described: FastAPI, retriever: Retriever, token: str, requests: models.Requests
) -> None:
    writer = asyncio.Lock()  # so that writers queue here and not in a thread each
    waiting = 0

    async def write(change: Callable[[], Any]) -> Any:
        nonlocal waiting
        if waiting >= _WAITING_WRITERS:
            raise BusyError
        waiting += 1
        try:
            async with writer:
                return await asyncio.to_thread(change)
        finally:
            waiting -= 1

    security = [Depends(HTTPBearer(scheme_name="token"))]  # only described; see `_require_token`
    refused = (401, 403, 429, 503, 507)
    id_parameter = {"name": "id", "in": "path", "required": True, "schema": models.ID}

    bodies = _bodies(requests.add, models.AddResponse, *refused)

    @described.post("/questions", dependencies=security, **bodies)
    async def add(request: Request) -> Response:
        """Add questions; on disk, and found by searches, before this answers. Needs the token."""
        _require_token(request, token)
        body = requests.add.model_validate_json(await request.body())
        ids = await write(lambda: retriever.add(body.questions, body.ids, body.payload))
        return _json(json.dumps({"ids": ids}).encode())

    @described.delete(
        "/questions/{id:id}",
        status_code=204,
        dependencies=security,
        responses=models.errors(404, 422, *refused),
        openapi_extra={"parameters": [id_parameter]},
    )
    async def remove(request: Request) -> Response:
        """Remove a question; on disk, and from searches, before this answers. Needs the token."""
        _require_token(request, token)
        given = request.path_params["id"]
        try:
            models.check_id(given)
        except PydanticCustomError as error:
            line = f"`id`: {error.message()}, got {models.shorten(given)}"
            raise HTTPException(422, line) from None
        if not await write(lambda: retriever.remove([given], ignore_missing=True)):
            raise HTTPException(404, f"no question has the id {models.shorten(given)}")
        return Response(status_code=204)


def _require_token(request: Request, token: str) -> None:
    """Raise the exception for 401 or 403 unless the request has the server's token."""
    if not token:
        raise HTTPException(403, "writing is off: the server was started without a token")
    given = request.headers.getlist("authorization")
    scheme, _, value = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    same = secrets.compare_digest(value.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not same:
        line = "expected `Authorization: Bearer TOKEN` with the server's token"
        raise HTTPException(401, line, {"WWW-Authenticate": "Bearer"})


def _add_state(
    described: FastAPI, retriever: Retriever, server_metrics: ServerMetrics, limits: Limits
) -> None:
    words = retriever.second_stages.words(retriever.index)
    page, headers = make_page(k=limits.k, characters=limits.characters, rerank=words)

    @described.get("/health", response_model=models.Health)
    async def health(request: Request) -> Response:
        """The state of the server and the number of questions it can find."""
        return JSONResponse({"status": "ok", "questions": len(retriever)})

    text = {200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}}

    @described.get("/metrics", response_class=Response, responses=text)  # type: ignore[arg-type]
    async def metrics(request: Request) -> Response:
        """Counts and times in the format of Prometheus."""
        report = await asyncio.to_thread(generate_latest, server_metrics.registry)
        return Response(report, media_type=CONTENT_TYPE_LATEST)

    @described.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        return Response(page, headers=headers, media_type="text/html")


def _bodies(
    request: type[models.Model], response: type[models.Model], *refused: int
) -> dict[str, Any]:
    """The OpenAPI description of a route whose function parses the body itself."""
    body = {"content": {"application/json": {"schema": request.model_json_schema()}}}
    return {
        "response_model": response,
        "openapi_extra": {"requestBody": body | {"required": True}},
        "responses": models.errors(408, 413, 422, *refused),
    }


def _search_json(results: Sequence[Sequence[Hit]]) -> bytes:
    # ASCII, because any string is a question, even one with a lone surrogate.
    return json.dumps({"results": [[hit._asdict() for hit in hits] for hits in results]}).encode()


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def error_handlers(paths: list[str]) -> dict[Any, Any]:
    """Handlers of all exceptions, which answer {"error": LINE}."""

    async def answer(request: Request, error: Exception) -> Response:
        status, line, headers = _describe_error(request, error, paths)
        return JSONResponse({"error": line}, status, headers)

    kinds = (ValidationError, HTTPException, BusyError, UserError, OSError, Exception)
    return dict.fromkeys(kinds, answer)


def _describe_error(
    request: Request, error: Exception, paths: list[str]
) -> tuple[int, str, Mapping[str, str] | None]:
    """The status, the line and the headers of the answer to a request that failed."""
    match error:
        case ValidationError():
            return 422, models.describe(error), None
        case HTTPException(status_code=405):
            line = f"expected {(error.headers or {}).get('Allow')}, got {request.method}"
            return 405, line, error.headers
        case HTTPException(detail="Not Found"):
            got = models.shorten(request.url.path)
            return 404, f"expected one of {', '.join(paths)}; got {got}", error.headers
        case HTTPException():
            return error.status_code, error.detail, error.headers
        case BusyError():
            return 429, "too many queries or writes are waiting; wait", {"Retry-After": "1"}
        case UserError() | OSError():
            # The request was valid: the fault is in the index folder or the disk.
            log.error("%s %s: %s", request.method, request.url.path, error)
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                return 507, "not written, because the server's disk is full", None
            return 503, "the server cannot use its index; see its log", None
    # uvicorn logs the traceback, and closes the connection, which clients must know.
    return 500, "the server failed; see its log", {"Connection": "close"}
