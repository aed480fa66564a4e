"""The bodies of requests and answers, their limits, and the one-line errors about them."""

# No `from __future__ import annotations`: pydantic must resolve types defined inside `requests`.

import reprlib
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from qpr_jax import ids
from qpr_jax.errors import UserError
from qpr_jax.ids import LARGEST_BYTES, LARGEST_ID, id_key
from qpr_jax.index.payloads import payload_json
from qpr_jax.serving.limits import Limits

_EXPECTED_ID = (
    f"expected a whole number from 0 to 2^63 - 1, or a string of 1 to {LARGEST_BYTES:,} bytes"
)
ID: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": LARGEST_ID},
        {"type": "string", "minLength": 1, "maxLength": LARGEST_BYTES},
    ],
    "description": f"{_EXPECTED_ID.removeprefix('expected ').capitalize()} in UTF-8; ids that "
    'print alike, as 7 and "7", are one.',
    "examples": [7, "a-17"],
}
_ERRORS = {
    401: "The token is missing or wrong.",
    403: "The server has no token, so writing is off.",
    404: "No question has the id.",
    408: "The body did not arrive in time.",
    409: "The server has no folder to read again.",
    413: "The body is too large.",
    422: "The request does not match this document.",
    429: "The server is busy; wait and try again.",
    503: "The server cannot use its index, or not in time.",
    507: "The server's disk is full.",
}


class Model(BaseModel):
    """A body of JSON; types are not converted and unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


def check_id(value: object) -> ids.Id:
    """Return an id of JSON, or of an address, as it is."""
    if type(value) in (int, str):
        try:
            return ids.check_id(value, "")
        except UserError:
            pass
    raise PydanticCustomError("id", _EXPECTED_ID)


def _check_payload(payload: dict[str, Any]) -> dict[str, Any]:
    """Refuse what is no JSON although Python reads it, as NaN."""
    try:
        payload_json(payload, "")
    except UserError:
        raise PydanticCustomError(
            "payload", "expected values of JSON, without NaN and infinity"
        ) from None
    return payload


Id = Annotated[Any, PlainValidator(check_id), WithJsonSchema(ID)]
Payload = Annotated[
    dict[str, Any],
    AfterValidator(_check_payload),
    Field(description="Values of JSON by name.", examples=[{"url": "https://example.com/7"}]),
]


class HitModel(Model):
    """A question that was found."""

    id: Id
    question: str = Field(description="The text that is indexed.")
    distance: float = Field(
        description="Between the vectors of the encoder: squared Euclidean, or the inner product "
        "times -1."
    )
    score: float | None = Field(
        description="The probability that it means the same as the query; null where no second "
        "stage ordered it."
    )
    payload: Payload | None = Field(
        description="What was given with the question; null where nothing was."
    )


class SearchResponse(Model):
    """The hits of each query."""

    results: list[list[HitModel]] = Field(
        description="A list for each query, in their order; its hits are sorted, best first."
    )


class EncodeResponse(Model):
    """The vector of each question."""

    vectors: list[list[float]] = Field(description="One for each question, in their order.")


class AddResponse(Model):
    """The id of each question."""

    ids: list[Id] = Field(description="One for each question, in their order, as it was given.")


class Question(Model):
    """A question that is indexed."""

    id: Id
    question: str = Field(description="The text that is indexed.")
    payload: Payload | None = Field(
        description="What was given with the question; null where nothing was."
    )


class Health(Model):
    """The state of the server."""

    status: str = Field(description='"ok".', examples=["ok"])
    questions: int = Field(description="How many questions can be found.")


class Ready(Model):
    """That the server can search."""

    status: str = Field(description='"ready".', examples=["ready"])


class Reloaded(Model):
    """The index that took the place of the one before."""

    questions: int = Field(description="How many questions can be found now.")
    seconds: float = Field(description="How long it took.")


class Error(Model):
    """An error."""

    error: str = Field(description="What was expected and what came, in one line.")


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

    class SearchRequest(Model):
        """What to search for."""

        queries: Questions = Field(examples=[["how can i learn french quickly"]])
        k: Annotated[int, Field(ge=1, le=limits.k)] = Field(
            min(5, limits.k), description="The most hits of a query."
        )
        rerank: Annotated[Word, BeforeValidator(_check_word)] = Field(
            None,
            description="The re-ranker of the first hits: false for none, null for light if there "
            "is one.",
        )

        @model_validator(mode="after")
        def limit_work(self) -> Self:
            if (hits := len(self.queries) * self.k) > limits.hits:
                line = f"expected at most {limits.hits:,} hits, queries times k; got {hits:,}"
                raise PydanticCustomError("many", f"{line}; send several requests")
            if self.rerank == "cross_encoder" and len(self.queries) > limits.cross_queries:
                line = f"expected at most {limits.cross_queries} queries for a cross-encoder, got "
                raise PydanticCustomError("many", f"{line}{len(self.queries)}")
            return self

    class EncodeRequest(Model):
        """What to encode."""

        questions: Questions = Field(examples=[["how can i learn french quickly"]])

    class AddRequest(Model):
        """What to add."""

        questions: NoBlanks = Field(examples=[["How can I learn French quickly?"]])
        ids: list[Id] | None = Field(
            None,
            description="One for each question; a question whose id exists is replaced, payload "
            "and all. New numbers if null.",
        )
        payload: list[Payload | None] | None = Field(
            None, description="One for each question, which comes back with its hits."
        )

        @model_validator(mode="after")
        def check_ids(self) -> Self:
            count = len(self.questions)
            for name, values in (("ids", self.ids), ("payload", self.payload)):
                if values is not None and len(values) != count:
                    line = f"`{name}`: expected one for each of {count} questions, got "
                    raise PydanticCustomError("many", f"{line}{len(values)}")
            if self.ids is not None and len({*map(id_key, self.ids)}) < count:
                raise PydanticCustomError("many", "`ids`: expected distinct ids, got one twice")
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
    if not first["loc"] and first["type"] == "many":
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
