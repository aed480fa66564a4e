"""What is asked of the service and what it answers."""

# Not `from __future__ import annotations`: pydantic reads what stands in the functions.

import reprlib
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

ID = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})$"}
_HITS = 10_000  # of a request
_ERRORS = {
    401: "The token is missing or wrong.",
    403: "The server has no token: nobody writes.",
    404: "No question has the id.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    422: "The request is not as it should be.",
    429: "Too much is asked at once; wait.",
    503: "The server cannot use its index.",
    507: "The server's disk is full.",
}


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


LIMITS = Limits()


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


class Error(Model):
    """What was wrong, in one line."""

    error: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of them."""
    return {status: {"model": Error, "description": _ERRORS[status]} for status in statuses}


class Requests(NamedTuple):
    """The models of requests."""

    search: Any
    encode: Any
    add: Any


def requests(limits: Limits) -> Requests:
    """Models that refuse what is beyond the limits."""
    Question = Annotated[str, Field(max_length=limits.characters)]  # noqa: N806
    Questions = Annotated[list[Question], Field(max_length=limits.questions)]  # noqa: N806
    Said = Annotated[Questions, AfterValidator(_said)]  # noqa: N806
    Id = Annotated[int, Field(ge=0, lt=2**63)]  # noqa: N806

    class SearchRequest(Model):
        queries: Questions
        k: Annotated[int, Field(ge=1, le=limits.k)] = min(5, limits.k)

        @model_validator(mode="after")
        def few(self) -> Self:
            if (hits := len(self.queries) * self.k) > _HITS:
                raise PydanticCustomError(
                    "many",
                    f"expected at most {_HITS:,} questions to be found, queries times k; got "
                    f"{hits:,}; ask in several requests",
                )
            return self

    class EncodeRequest(Model):
        questions: Questions

    class AddRequest(Model):
        questions: Said
        ids: Annotated[
            list[Id] | None,
            Field(description="One a question; one that is there is replaced. New ones if absent."),
        ] = None

        @model_validator(mode="after")
        def distinct(self) -> Self:
            if self.ids is not None and len(self.ids) != len(self.questions):
                raise PydanticCustomError(
                    "ids",
                    f"`ids`: expected one a question, {len(self.questions)}; got {len(self.ids)}",
                )
            if self.ids is not None and len({*self.ids}) < len(self.ids):
                raise PydanticCustomError("ids", "`ids`: expected distinct ids, got one twice")
            return self

    return Requests(SearchRequest, EncodeRequest, AddRequest)


def _said(questions: list[str]) -> list[str]:
    for i, question in enumerate(questions):
        if not question.strip():
            raise PydanticCustomError("blank", f"expected questions, got a blank one at {i}")
    return questions


def told(error: ValidationError) -> str:
    """What is wrong with a body, in one short line."""
    if (count := error.error_count()) > 1000:  # to write them all down takes long
        return f"expected an object as in /openapi.json, got {count:,} things that are not in it"
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"expected JSON, got a body that is none ({first['ctx']['error']})"
    if not first["loc"] and first["type"] in ("many", "ids"):
        return first["msg"]
    where = ".".join(shortened(part) for part in first["loc"]) or "body"
    got = "" if first["type"] in ("missing", "blank") else f", got {shortened(first['input'])}"
    return f"`{where}`: {first['msg']}{got}"


def shortened(value: object) -> str:
    """Some printable ASCII that says what a value is."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 60:
        return value
    try:
        text = reprlib.repr(value)
    except ValueError:  # a number too long to be written
        text = f"a {type(value).__name__}"
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 100 else f"{text[:97]}..."
