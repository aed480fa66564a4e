"""The HTTP service: search, encode, questions, and what those need who run it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import qpr_jax
from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.ids import Id
from qpr_jax.index.base import StoredQuestion
from qpr_jax.retriever import Retriever
from qpr_jax.serving import models
from qpr_jax.serving.batching import BusyError
from qpr_jax.serving.guard import LOOPBACK, Guard
from qpr_jax.serving.limits import LIMITS, Limits
from qpr_jax.serving.live import LiveIndex
from qpr_jax.serving.observer import REQUEST_ID, Observer, ServerMetrics
from qpr_jax.serving.operations import add_operations, bearer, require_token

log = logging.getLogger("qpr_jax")


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
    allowed_origins: Collection[str] = (),
    access_log: Callable[[str], object] | None = None,
    open_again: Callable[[], Retriever] | None = None,
    reload_signal: int = 0,
    on_ready: Callable[[], object] = bool,
) -> Any:
    """The ASGI application, which warms up when its server starts it.

    Args:
      token: clients must send it to write and to reload; without one nobody can.
      threads: threads of FAISS.
      allowed_hosts: names allowed in the `Host` header, without port; "*" allows all.
      allowed_origins: of web pages that may read the answers in a browser (CORS), as
        https://shop.example; none otherwise.
      access_log: gets a line of JSON for each request.
      open_again: reads the index of the folder, for a reload; None: there is none.
      reload_signal: a signal that reloads, too; the server must run in the main thread then.
      on_ready: called once it is warm.
    """
    metrics = ServerMetrics()
    live = LiveIndex(retriever, open_again, limits=limits, threads=threads, metrics=metrics)
    routes = _describe(live, token, limits, metrics)
    paths = sorted({route.path_format for route in routes})
    app: Any = Starlette(
        routes=_by_path(routes),
        exception_handlers=error_handlers(paths),
        lifespan=_lifespan(live, reload_signal, on_ready),
    )
    app.router.redirect_slashes = False
    app = Guard(app, hosts=allowed_hosts, limits=limits)
    if allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=[*allowed_origins],
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["Retry-After", "X-QPR-Version", "X-Request-ID"],
        )
    return Observer(app, metrics, paths=paths, access_log=access_log)


def _describe(
    live: LiveIndex, token: str, limits: Limits, metrics: ServerMetrics
) -> list[APIRoute]:
    """All routes; FastAPI describes them, and Starlette answers, which takes half the time."""
    described = FastAPI(
        title="qpr_jax",
        version=qpr_jax.__version__,
        description="Finds the questions already asked that mean the same.",
        openapi_url=None,
    )
    requests = models.requests(limits)
    _add_searches(described, live, requests, limits)
    _add_questions(described, live, token, requests)
    add_operations(described, live, token, metrics)
    document = json.dumps(described.openapi()).encode()

    @described.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return _json(document)

    return [route for route in described.routes if isinstance(route, APIRoute)]


def _lifespan(live: LiveIndex, reload_signal: int, on_ready: Callable[[], object]) -> Any:
    """What the server does before its first request, and after its last."""
    running: set[asyncio.Task[Any]] = set()  # else they might be collected

    def start(work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        running.add(task)
        task.add_done_callback(running.discard)

    async def warm_up() -> None:
        await live.warm_up()
        on_ready()

    async def reload() -> None:
        with contextlib.suppress(HTTPException):  # which is logged
            await live.reload()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        start(warm_up())
        if reload_signal:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(reload_signal, lambda: start(reload()))
        yield
        for task in running:
            task.cancel()

    return lifespan


def _by_path(routes: Sequence[APIRoute]) -> list[Route]:
    """One route for each path, so that the answer to a wrong method names all right ones."""
    endpoints: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in route.methods or ():
            endpoints.setdefault(route.path, {})[method] = route.endpoint

    def answer_by(methods: Mapping[str, Any]) -> Any:
        async def answer(request: Request) -> Response:
            found = methods["GET" if request.method == "HEAD" else request.method]
            response: Response = await found(request)
            return response

        return answer

    return [Route(p, answer_by(methods), methods=[*methods]) for p, methods in endpoints.items()]


def _add_searches(
    described: FastAPI, live: LiveIndex, requests: models.Requests, limits: Limits
) -> None:
    async def in_time(work: Awaitable[bytes]) -> Response:
        try:
            async with asyncio.timeout(limits.seconds) as limit:
                return _json(await work)
        except TimeoutError:
            if not limit.expired():
                raise
            line = f"not answered within {limits.seconds:g} s; wait, or send less"
            raise HTTPException(503, line, {"Retry-After": "1"}) from None

    def encode_json(retriever: Retriever, questions: list[str]) -> bytes:
        return json.dumps({"vectors": retriever.encode(questions).tolist()}).encode()

    @described.post("/search", **_bodies(requests.search, models.SearchResponse, 429, 503))
    async def search(request: Request) -> Response:
        """The best questions for each query."""
        body = requests.search.model_validate_json(await request.body())
        served = live.served
        try:
            word = served.choose(body.rerank)
        except UserError as error:
            raise HTTPException(422, f"`rerank`: {error.what}") from None
        return await in_time(served.search(body.queries, body.k, word))

    @described.post("/encode", **_bodies(requests.encode, models.EncodeResponse, 429, 503))
    async def encode(request: Request) -> Response:
        """The vector of each question."""
        body = requests.encode.model_validate_json(await request.body())
        retriever = live.served.retriever
        return await in_time(asyncio.to_thread(encode_json, retriever, body.questions))


def _add_questions(
    described: FastAPI, live: LiveIndex, token: str, requests: models.Requests
) -> None:
    refused = (401, 403, 429, 503, 507)
    id_parameter = {"name": "id", "in": "path", "required": True, "schema": models.ID}
    bodies = _bodies(requests.add, models.AddResponse, *refused)

    @described.post("/questions", dependencies=bearer(), **bodies)
    async def add(request: Request) -> Response:
        """Add questions; on disk, and found by searches, before this answers. Needs the token."""
        require_token(request, token)
        body = requests.add.model_validate_json(await request.body())
        ids = await live.write(lambda now: now.add(body.questions, body.ids, body.payload))
        return _json(json.dumps({"ids": ids}).encode())

    @described.get(
        "/questions/{id:id}",
        response_model=models.Question,
        responses=models.errors(404, 422, 429, 503),
        openapi_extra={"parameters": [id_parameter]},
    )
    async def get(request: Request) -> Response:
        """The question of an id, and its payload."""
        given = _id_of(request)
        found = await asyncio.to_thread(_stored, live.served.retriever, given)
        if found is None:
            raise _unknown(given)
        return _json(json.dumps(found._asdict()).encode())

    @described.delete(
        "/questions/{id:id}",
        status_code=204,
        dependencies=bearer(),
        responses=models.errors(404, 422, *refused),
        openapi_extra={"parameters": [id_parameter]},
    )
    async def remove(request: Request) -> Response:
        """Remove a question; on disk, and from searches, before this answers. Needs the token."""
        require_token(request, token)
        given = _id_of(request)
        if not await live.write(lambda now: now.remove([given], ignore_missing=True)):
            raise _unknown(given)
        return Response(status_code=204)


def _id_of(request: Request) -> Id:
    """The id at the end of the path, with whatever it has: slashes, blanks, quotes."""
    given = request.path_params["id"]
    try:
        return models.check_id(given)
    except PydanticCustomError as error:
        raise HTTPException(422, f"`id`: {error.message()}, got {models.shorten(given)}") from None


def _stored(retriever: Retriever, given: Id) -> StoredQuestion | None:
    return retriever.index.stored([given])[0]


def _unknown(given: Id) -> HTTPException:
    return HTTPException(404, f"no question has the id {models.shorten(given)}")


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
            allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
            return 405, f"expected {', '.join(allowed)}, got {request.method}", error.headers
        case HTTPException(detail="Not Found"):
            got = models.shorten(request.url.path)
            return 404, f"expected one of {', '.join(paths)}; got {got}", error.headers
        case HTTPException():
            return error.status_code, error.detail, error.headers
        case BusyError():
            return 429, "too many queries or writes are waiting; wait", {"Retry-After": "1"}
        case UnavailableError():
            log.error("%s %s: %s", request.method, request.url.path, error)
            return 503, "the index does not answer; try again", {"Retry-After": "1"}
        case UserError() | OSError():
            # The request was valid: the fault is in the index folder or the disk.
            name = request.scope.get(REQUEST_ID, "")
            log.error("%s %s %s: %s", name, request.method, request.url.path, error)
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                return 507, "not written, because the server's disk is full", None
            return 503, "the server cannot use its index; see its log", None
    # uvicorn logs the traceback, and closes the connection, which clients must know.
    return 500, "the server failed; see its log", {"Connection": "close"}
