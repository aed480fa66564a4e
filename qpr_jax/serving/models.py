"""The bodies of requests and answers, their limits, and the one-line errors about them."""

# No `from __future__ import annotations`: pydantic must resolve types defined inside `requests`.

import reprlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

ID = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
_MAX_HITS = 10_000  # of one request
CROSS_QUERIES = 16  # of one request to a cross-encoder, and of a batch of them
_ERRORS = {
    401: "The token is missing or wrong.",
    403: "The server has no token, so writing is off.",
    404: "No question has the id.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    422: "The request does not match this document.",
    429: "The server is busy; wait and try again.",
    503: "The server cannot use its index.",
    507: "The server's disk is full.",
}


@dataclass(frozen=True)
class Limits:
    """The limits on requests; a request beyond one is answered with a status of 4xx.

    Attributes:
      body: bytes of a body.
      k: hits of a query.
      characters: characters of a question.
      questions: questions of a request.
      concurrent: requests answered at a time.
    """

    body: int = 1 << 20
    k: int = 100
    characters: int = 2000
    questions: int = 1000
    concurrent: int = 256


LIMITS = Limits()


class Model(BaseModel):
    """A body of JSON; types are not converted and unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class HitModel(Model):
    """A question that was found."""

    id: int
    question: str
    distance: float = Field(description="Squared Euclidean, or the inner product times -1.")
    score: float | None = Field(
        description="The probability that it means the same as the query; null where no second "
        "stage ordered it."
    )


class SearchResponse(Model):
    """The hits of each query, best first."""

    results: list[list[HitModel]]


class EncodeResponse(Model):
    """The vector of each question."""

    vectors: list[list[float]]


class AddResponse(Model):
    """The id of each question."""

    ids: list[int]


class Health(Model):
    """The state of the server and the number of questions it can find."""

    status: str
    questions: int


class Error(Model):
    """An error in one line."""

    error: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route in the OpenAPI document."""
    return {status: {"model": Error, "description": _ERRORS[status]} for status in statuses}


class Requests(NamedTuple):
    """The models of requests."""

    search: Any
    encode: Any
    add: Any


def requests(limits: Limits) -> Requests:
    """The models of requests under `limits`."""
    Question = Annotated[str, Field(max_length=limits.characters)]  # noqa: N806
    Questions = Annotated[list[Question], Field(max_length=limits.questions)]  # noqa: N806
    NoBlanks = Annotated[Questions, AfterValidator(_refuse_blank)]  # noqa: N806
    Word = Literal[False, "light", "cross_encoder"] | None  # noqa: N806
    Id = Annotated[int, Field(ge=0, lt=2**63)]  # noqa: N806

    class SearchRequest(Model):
        queries: Questions
        k: Annotated[int, Field(ge=1, le=limits.k)] = min(5, limits.k)
        rerank: Annotated[Word, BeforeValidator(_check_word)] = Field(
            None,
            description="The re-ranker of the first hits: false for none, null for light if there "
            "is one.",
        )

        @model_validator(mode="after")
        def limit_work(self) -> Self:
            if (hits := len(self.queries) * self.k) > _MAX_HITS:
                line = f"expected at most {_MAX_HITS:,} hits, queries times k; got {hits:,}; send "
                raise PydanticCustomError("many", f"{line}several requests")
            if self.rerank == "cross_encoder" and len(self.queries) > CROSS_QUERIES:
                line = f"expected at most {CROSS_QUERIES} queries for a cross-encoder, got "
                raise PydanticCustomError("many", f"{line}{len(self.queries)}")
            return self

    class EncodeRequest(Model):
        questions: Questions

    class AddRequest(Model):
        questions: NoBlanks
        ids: list[Id] | None = Field(
            None,
            description="One for each question; an id that exists is replaced. New ids if null.",
        )

        @model_validator(mode="after")
        def check_ids(self) -> Self:
            ids, count = self.ids, len(self.questions)
            if ids is not None and len(ids) != count:
                line = f"`ids`: expected one for each of {count} questions, got {len(ids)}"
                raise PydanticCustomError("ids", line)
            if ids is not None and len({*ids}) < len(ids):
                raise PydanticCustomError("ids", "`ids`: expected distinct ids, got one twice")
            return self

    return Requests(SearchRequest, EncodeRequest, AddRequest)


def _check_word(rerank: object) -> object:
    """Refuse other words in JSON's spelling; pydantic would take 0 for `Literal[False]`."""
    if rerank is not None and rerank is not False and rerank not in ("light", "cross_encoder"):
        raise PydanticCustomError("word", 'expected false, null, "light" or "cross_encoder"')
    return rerank


def _refuse_blank(questions: list[str]) -> list[str]:
    for i, question in enumerate(questions):
        if not question.strip():
            raise PydanticCustomError("blank", f"expected questions, got a blank one at {i}")
    return questions


def describe(error: ValidationError) -> str:
    """The first error in a body, in one short line."""
    if (count := error.error_count()) > 1000:  # listing them takes long
        return f"expected an object as in /openapi.json, got one with {count:,} errors"
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"expected JSON, got another body ({first['ctx']['error']})"
    if not first["loc"] and first["type"] in ("many", "ids"):
        return first["msg"]
    where = ".".join(shorten(part) for part in first["loc"]) or "body"
    got = "" if first["type"] in ("missing", "blank") else f", got {shorten(first['input'])}"
    return f"`{where}`: {first['msg']}{got}"


def shorten(value: object) -> str:
    """`value` as at most 100 characters of printable ASCII."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 60:
        return value
    try:
        text = reprlib.repr(value)
    except ValueError:  # an integer with too many digits to print
        text = f"a {type(value).__name__}"
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 100 else f"{text[:97]}..."
