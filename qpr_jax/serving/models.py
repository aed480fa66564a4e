"""Bodies of requests and answers."""

from __future__ import annotations

import contextlib
import json
import unicodedata
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from qpr_jax.data import entries
from qpr_jax.data.entries import LARGEST_BYTES, LARGEST_ID
from qpr_jax.errors import short
from qpr_jax.index.protocol import CLOSE
from qpr_jax.text.tokenizer import replace_surrogates

_ID_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": LARGEST_ID},
        {"type": "string", "minLength": 1, "maxLength": LARGEST_BYTES},
    ],
    "description": "A whole number, or a string in UTF-8. Ids that print alike, such as 7 and "
    '"7", are one id.',
    "examples": [7, "a-17"],
}

CHARACTERS, TEXTS = 2000, 1000  # limits: characters of a text; texts of a request
MOST_HITS = 10_000  # of a request, queries times k
CROSS_QUERIES = 16  # limit of queries of a request to a cross-encoder


class Model(BaseModel):
    """A JSON body. Values are not converted, and unknown keys are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


def _check_id(value: object) -> entries.Id:
    """Return an id as it is, 7 for 7.0; refuse anything else, lone surrogates included."""
    with contextlib.suppress(ValueError):
        if type(value) in (int, float, str):
            str(value).encode()
            return entries.check_id(value, "")
    raise PydanticCustomError("expected", f"expected {entries.EXPECTED}")


def _check_payload(payload: dict[str, Any]) -> dict[str, Any]:
    """Refuse what Python reads but JSON lacks: NaN, infinity and lone surrogates."""
    json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()
    return payload


Id = Annotated[Any, PlainValidator(_check_id), WithJsonSchema(_ID_SCHEMA)]
Payload = Annotated[
    dict[str, Any],
    AfterValidator(_check_payload),
    Field(description="JSON values by name.", examples=[{"url": "https://example.com/7"}]),
]


def _check_length(text: str) -> str:
    """Refuse a text that is much longer once it is normalized: one sign may stand for 18."""
    if len(unicodedata.normalize("NFKC", text)) > CHARACTERS:
        what = f"expected at most {CHARACTERS:,} characters in the normal form NFKC"
        raise PydanticCustomError("expected", what)
    return text


Text = Annotated[str, Field(max_length=CHARACTERS), AfterValidator(_check_length)]
# With ? for each half of a character, which UTF-8 cannot have.
Query = Annotated[
    Text, BeforeValidator(lambda text: replace_surrogates(text) if isinstance(text, str) else text)
]
Queries = Annotated[list[Query], Field(max_length=TEXTS)]
# An address has no other false than the word.
Order = Annotated[
    Literal[False, "cross_encoder"],
    BeforeValidator(lambda word: False if word == "false" else word),
]


class SearchOptions(BaseModel):
    """Which hits are answered."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(5, ge=1, le=1000, description="Maximum number of hits of a query.")
    distinct: bool = Field(False, description="Whether to find a text once, though many have it.")
    min_score: float | None = Field(
        None, ge=0, le=1, description="Leave out hits with a lower score or none."
    )
    rerank: Order | None = Field(
        None, description="Order of the first hits; false: distance; null: score, if there is one."
    )


class SearchRequest(SearchOptions):
    """What to search for."""

    model_config = ConfigDict(strict=True)

    queries: Queries | None = Field(None, examples=[["how can i learn french quickly"]])
    query: Query | None = Field(None, description="One query, instead of `queries`.")

    @property
    def texts(self) -> list[str]:
        """All queries."""
        return self.queries or [] if self.query is None else [self.query]

    @model_validator(mode="after")
    def _check_work(self) -> Self:
        if (self.queries is None) is (self.query is None):
            raise PydanticCustomError("whole", "expected one of `queries` and `query`")
        if (hits := len(self.texts) * self.k) > MOST_HITS:
            line = f"expected at most {MOST_HITS:,} hits, queries times k; got {hits:,}"
            raise PydanticCustomError("whole", line)
        if self.rerank == "cross_encoder" and (count := len(self.texts)) > CROSS_QUERIES:
            line = f"expected at most {CROSS_QUERIES} queries for a cross-encoder, got {count}"
            raise PydanticCustomError("whole", line)
        return self


class SearchQuery(SearchOptions):
    """What to search for, in the address."""

    q: Text

    def as_request(self) -> SearchRequest:
        """Return the same as a body."""
        return SearchRequest(query=self.q, **self.model_dump(exclude={"q"}))


class EncodeRequest(Model):
    """What to encode."""

    questions: Queries = Field(examples=[["how can i learn french quickly"]])


class AddRequest(Model):
    """What to add."""

    questions: list[Text] = Field(max_length=TEXTS, examples=[["How can I learn French quickly?"]])
    ids: list[Id] | None = Field(
        None,
        description="One for each question. A question whose id exists is replaced, payload "
        "included. The server chooses new ids if null.",
    )
    payload: list[Payload | None] | None = Field(
        None, description="One for each question; returned with its hits."
    )


class QuestionModel(Model):
    """An indexed question."""

    id: Id
    question: str = Field(description="The indexed text.")
    payload: Payload | None = Field(description="What was added with the question, or null.")


class HitModel(QuestionModel):
    """A question that was found."""

    distance: float = Field(
        description="Between the vectors: squared Euclidean, or the inner product times -1."
    )
    score: float | None = Field(
        description="How likely it means the same as the query, 0 to 1; null if unknown."
    )
    close: bool | None = Field(
        description=f"Whether the score is at least {CLOSE}; null without a score."
    )
    column: str = Field("", description="The column that matched, if not that of the question.")


class SearchResponse(Model):
    """The hits of each query."""

    results: list[list[HitModel]] = Field(
        description="One list for each query, in order; hits are sorted, best first."
    )


class EncodeResponse(Model):
    """The vector of each question."""

    vectors: list[list[float]] = Field(description="One for each question, in order.")


class AddResponse(Model):
    """The id of each question."""

    ids: list[Id] = Field(description="One for each question, in order.")


class Error(Model):
    """An error."""

    error: str = Field(description="What is wrong, in one line.")


def shorten(value: object) -> str:
    """Return `value` as at most 100 characters of printable ASCII."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= 60:
        return value
    text = short(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 100 else f"{text[:97]}..."
