"""A question as an entity of a Milvus collection, which has the fields

    id        the id: printable ASCII as it is, but for quotes, backslashes, braces and %, all else
              as in an URL; so no id means anything in an expression
    question  its text
    qpr_row   where it stands among questions that are equally far: 0, 1, ... of a load, then a time
    vector    float32 [d]

and a dynamic field for each column of the payload. What these cannot hold is in dynamic fields of
ours: `qpr_text_id` says that an id such as "7" was a string; `qpr_question` and `qpr_payload` are
JSON of a text with a lone surrogate, and of a payload with one, with a number beyond 64 bits, or
with a name that is a field's.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Hit, Payload, StoredQuestion
from qpr_jax.index.milvus_server import Server
from qpr_jax.index.payloads import payload_json

BATCH_BYTES = 4 << 20  # of a call; Milvus's own messages have 5 MiB at most
_TEXT_BYTES, _DYNAMIC_BYTES = 65_535, 65_536
_PLAIN = "".join(map(chr, range(32, 127))).translate(dict.fromkeys(map(ord, "\"'\\%{}")))
_FIELDS = ("id", "question", "qpr_row", "vector", "$meta")
_OURS = "qpr_"
READ = ["id", "question", "qpr_row", "$meta"]


def fields_of(dimension: int) -> list[tuple[str, str, dict[str, Any]]]:
    """The fields of a collection, as of `Server.create`."""
    return [
        ("id", "VARCHAR", {"max_length": 3 * 1024}),  # an id of 1,024 bytes, each as %XX
        ("question", "VARCHAR", {"max_length": _TEXT_BYTES}),
        ("qpr_row", "INT64", {}),
        ("vector", "FLOAT_VECTOR", {"dim": dimension}),
    ]


def key_of(value: Id) -> str:
    """The field `id` of an id; ids that print alike have the same."""
    return urllib.parse.quote(str(value), safe=_PLAIN, errors="surrogatepass")


def as_entity(question: StoredQuestion, row: int) -> tuple[dict[str, Any], int]:
    """The entity of a question without its vector, and its bytes; UserError where too many."""
    value, text, payload = question
    where = f"of the id {value!s:.60}"
    dynamic: dict[str, Any] = {}
    if isinstance(value, str) and not isinstance(id_key(value), str):
        dynamic["qpr_text_id"] = True
    plain = text.encode("utf-8", "replace").decode()
    if plain != text:
        dynamic["qpr_question"] = json.dumps(text)
    found = payload_json(payload, where)
    if found is not None:
        columns = json.loads(found)
        kept = {name: value for name, value in columns.items() if _is_kept(name, value)}
        dynamic |= kept
        if len(kept) < len(columns):
            dynamic["qpr_payload"] = json.dumps(columns)
    size = len(plain.encode())
    more = len(json.dumps(dynamic, ensure_ascii=False).encode())
    for name, got, most in (("question", size, _TEXT_BYTES), ("payload", more, _DYNAMIC_BYTES)):
        if got > most:
            raise UserError(
                f"`{name}`: expected at most {most:,} bytes, as Milvus holds, got {got:,} {where}",
                remedy="shorten it, or keep the questions in a folder",
            )
    key = key_of(value)
    return {"id": key, "question": plain, "qpr_row": row, **dynamic}, size + more + len(key) + 16


def _is_kept(name: str, value: object) -> bool:
    """Whether a dynamic field gives a column of a payload back as it is."""
    if name in _FIELDS or name.startswith(_OURS):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return _is_plain(value)


def _is_plain(value: object) -> bool:
    match value:
        case str():
            return value.isascii() or value.encode("utf-8", "replace").decode() == value
        case bool() | float() | None:
            return True
        case int():
            return -(2**63) <= value < 2**63
        case Mapping():
            return all(_is_plain(item) for pair in value.items() for item in pair)
    return all(map(_is_plain, value))  # type: ignore[call-overload]


def as_id(entity: Mapping[str, Any]) -> Id:
    """The id of an entity, as it came."""
    text = urllib.parse.unquote(entity["id"], errors="surrogatepass")
    return text if entity.get("qpr_text_id") else id_key(text)


def as_question(entity: Mapping[str, Any]) -> StoredQuestion:
    """The question of an entity."""
    value = as_id(entity)
    question = entity["question"]
    if exact := entity.get("qpr_question"):
        question = json.loads(exact)
    if exact := entity.get("qpr_payload"):
        return StoredQuestion(value, question, json.loads(exact))
    payload = {
        name: item
        for name, item in entity.items()
        if name not in _FIELDS and not name.startswith(_OURS)
    }
    return StoredQuestion(value, question, payload or None)


def batches(
    questions: Iterable[StoredQuestion], dimension: int, rows: Iterator[int]
) -> Iterator[tuple[list[StoredQuestion], list[dict[str, Any]]]]:
    """Questions and their entities without vectors, in lists of at most BATCH_BYTES."""
    some: list[StoredQuestion] = []
    entities: list[dict[str, Any]] = []
    size = 0
    for question in questions:
        entity, own = as_entity(question, next(rows))
        own += 4 * dimension
        if some and size + own > BATCH_BYTES:
            yield some, entities
            some, entities, size = [], [], 0
        some.append(question)
        entities.append(entity)
        size += own
    if some:
        yield some, entities


def write_entities(
    server: Server, build: str, entities: list[dict[str, Any]], vectors: np.ndarray
) -> None:
    """Write a batch of `batches` to a collection; those of the same ids are replaced."""
    # Not `insert`, which would leave two where a call is repeated.
    values = np.asarray(vectors, np.float32)
    data = [entity | {"vector": value} for entity, value in zip(entities, values, strict=True)]
    server.call("upsert", build, data=data)


class FoundQuestions:
    """The questions of a search, as of `Found`; a row is a place in the list."""

    def __init__(self, questions: list[StoredQuestion]) -> None:
        self._questions = questions

    def _of(self, rows: np.ndarray) -> list[StoredQuestion]:
        return [self._questions[row] for row in rows.tolist()]

    def fields(self, rows: np.ndarray) -> tuple[list[Id], list[str]]:
        """The ids and texts."""
        found = self._of(rows)
        return [question.id for question in found], [question.question for question in found]

    def payloads(self, rows: np.ndarray) -> list[Payload | None]:
        """The payloads."""
        return [question.payload for question in self._of(rows)]

    def hits(self, distances: np.ndarray, rows: np.ndarray) -> list[list[Hit]]:
        """The hits of distances and rows, [n, k]."""
        pairs = (zip(*some, strict=True) for some in zip(distances.tolist(), rows, strict=True))
        return [
            [self._hit(distance, int(row)) for distance, row in some if row >= 0] for some in pairs
        ]

    def _hit(self, distance: float, row: int) -> Hit:
        value, question, payload = self._questions[row]
        return Hit(value, question, distance, None, payload)


def conditions(ids: Sequence[Id]) -> Iterator[str]:
    """Expressions for some of the ids each; keys have no quotes."""
    keys = [f'"{key_of(value)}"' for value in ids]
    for start in range(0, len(keys), 512):
        yield f"id in [{', '.join(keys[start : start + 512])}]"
