"""All limits of the service, and the options of `qpr serve` that set them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _limit(default: float, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Limits:
    """The limits on requests, each an option `--max-NAME` of `qpr serve`.

    A request beyond one of size is answered with 413 or 422, one beyond one of load with 429, one
    beyond one of time with 408 or 503. Times are in seconds; 0 requests a second of `rate` is no
    limit.
    """

    body: int = _limit(1 << 20, "Bytes of a body.")
    head: int = _limit(1 << 16, "Bytes of the head of a request.")
    k: int = _limit(100, "Hits of a query.")
    hits: int = _limit(10_000, "Hits of a request, queries times k.")
    characters: int = _limit(2000, "Characters of a question.")
    questions: int = _limit(1000, "Questions of a request.")
    cross_queries: int = _limit(16, "Queries of a request to a cross-encoder, and of its batch.")
    batch: int = _limit(256, "Queries searched together, unless one request has more.")
    waiting: int = _limit(4096, "Queries that wait for a search.")
    writers: int = _limit(32, "Requests that write or wait to.")
    concurrent: int = _limit(256, "Requests answered at a time, without those by GET.")
    connections: int = _limit(900, "Open connections; a process may usually open 1,024 files.")
    rate: float = _limit(0.0, "Requests a second of a client's address; 0: any number.")
    head_seconds: float = _limit(10.0, "For the head of a request to arrive.")
    body_seconds: float = _limit(30.0, "For the body of a request to arrive.")
    seconds: float = _limit(30.0, "To answer a search.")
    unread_seconds: float = _limit(30.0, "For a client to read its answer.")


LIMITS = Limits()
