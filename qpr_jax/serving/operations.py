"""Routes for those who run the service: health, readiness, metrics and reload; and the page."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from qpr_jax.serving import models
from qpr_jax.serving.live import LiveIndex
from qpr_jax.serving.observer import ServerMetrics


def add_operations(described: FastAPI, live: LiveIndex, token: str, metrics: ServerMetrics) -> None:
    """Add the routes."""

    @described.get("/health", response_model=models.Health)
    async def health(request: Request) -> Response:
        """That the process lives, and the number of questions it has; see also `/ready`."""
        # Of an index on a server it may take a second.
        count = await asyncio.to_thread(len, live.served.retriever)
        return JSONResponse({"status": "ok", "questions": count})

    @described.get("/ready", response_model=models.Ready, responses=models.errors(503))
    async def ready(request: Request) -> Response:
        """Whether it can search: 503 while it warms up, and when a search fails."""
        if reason := await live.why_not_ready():
            raise HTTPException(503, reason, {"Retry-After": "1"})
        return JSONResponse({"status": "ready"})

    text = {200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}}

    @described.get("/metrics", response_class=Response, responses=text)  # type: ignore[arg-type]
    async def report(request: Request) -> Response:
        """Counts and times in the format of Prometheus."""
        await live.why_not_ready()  # which `qpr_ready` says
        lines = await asyncio.to_thread(generate_latest, metrics.registry)
        return Response(lines, media_type=CONTENT_TYPE_LATEST)

    @described.post(
        "/reload",
        response_model=models.Reloaded,
        dependencies=bearer(),
        responses=models.errors(401, 403, 409, 429, 503),
    )
    async def reload(request: Request) -> Response:
        """Open the index of the folder again, and search it; the old one stays if that fails.

        Requests are answered meanwhile. Needs the token.
        """
        require_token(request, token)
        return JSONResponse(await live.reload())

    @described.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        page, headers = live.served.page
        return Response(page, headers=headers, media_type="text/html")


def bearer() -> list[Any]:
    """That a route needs the token; only described, see `require_token`."""
    return [Depends(HTTPBearer(scheme_name="token"))]


def require_token(request: Request, token: str) -> None:
    """Raise the exception for 401 or 403 unless the request has the server's token."""
    if not token:
        raise HTTPException(403, "writing is off: the server was started without a token")
    given = request.headers.getlist("authorization")
    scheme, _, value = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    same = secrets.compare_digest(value.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not same:
        line = "expected `Authorization: Bearer TOKEN` with the server's token"
        raise HTTPException(401, line, {"WWW-Authenticate": "Bearer"})
