"""A collection of Milvus with the methods of a `QuestionIndex`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.ids import Id, id_key
from qpr_jax.index.base import Hit, Reorder, StoredQuestion
from qpr_jax.index.milvus_entities import (
    READ,
    FoundQuestions,
    as_question,
    batches,
    conditions,
    key_of,
    write_entities,
)
from qpr_jax.index.milvus_recipe import search_parameters
from qpr_jax.index.milvus_records import Records
from qpr_jax.index.milvus_server import Server
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.statistics import Statistics

if TYPE_CHECKING:
    from qpr_jax.index.documents import Documents

MOST = 16_384  # hits of a query, as Milvus allows
_FOUND = 10_000  # hits of a call
_MORE = 8  # hits beyond those asked for, among which may be some as far as the last of these
_COUNTED = 1.0  # seconds for which a number of questions is kept
_LEVELS = {"strong": "Strong", "bounded": "Bounded", "eventual": "Eventually"}


class MilvusIndex:
    """An `Index` of a collection. A search sees the writes of `Settings.consistency`.

    Attributes:
      build: the name of the collection; that of the address is an alias of it.
      version: of the run's files.
      count, recall: questions of the load, and the recall@10 that it measured.
      dimension: of the vectors.
      statistics: of the questions of the load; later changes do not count.
    """

    documents: Documents | None = None

    def __init__(
        self,
        server: Server,
        records: Records,
        facts: Mapping[str, Any],
        requested: Recipe,
        statistics: Statistics,
    ) -> None:
        """facts: as `Server.describe` returns them."""
        properties = facts["properties"]
        self.server, self.records, self.requested = server, records, requested
        self.build: str = facts["collection_name"]
        self.version, self.encoder = properties["qpr.version"], properties["qpr.encoder"]
        self.encoder_name = properties["qpr.encoder_name"]
        self.count, self.recall = int(properties["qpr.count"]), json.loads(properties["qpr.recall"])
        self.dimension = int(properties["qpr.dimension"])
        self.statistics = statistics
        self._lock = threading.Lock()  # guards the four below
        self._written = 1  # Milvus's time of the last write of this process; 1: none
        self._size: int | None = None
        self._size_at = -np.inf
        self._reserved = 0  # numbers below it are given to no question without an id

    @property
    def recipe(self) -> Recipe:
        """As asked for: Milvus has fewer lists in a segment of few questions."""
        return self.requested

    @property
    def consistency(self) -> str:
        """What a search sees."""
        return self.server.settings.consistency

    @property
    def store(self) -> NoReturn:
        """A folder has its questions by rows; what reads those cannot do with Milvus."""
        raise UserError(
            f"{self.server.address}: expected a folder with an index, got a collection of Milvus",
            remedy="name a folder",
        )

    vectors = changed = store

    def __repr__(self) -> str:
        return f"<MilvusIndex: {self.server.address}, {self.requested.factory}>"

    def __len__(self) -> int:
        """How many questions there are, as of the last second, or when Milvus last answered."""
        with self._lock:
            if self._size is not None and time.monotonic() - self._size_at < _COUNTED:
                return self._size
        try:
            size = self.count_where("", timeout=min(_COUNTED, self.server.settings.timeout))
        except UnavailableError:
            if self._size is None:
                raise
            size = self._size
        with self._lock:
            self._size, self._size_at = size, time.monotonic()
        return size

    def count_where(self, condition: str, **how: Any) -> int:
        """How many entities there are of a condition; how: as of `Server.call`."""
        return self.server.count(self.build, condition, **self._level(), **how)

    def questions_encoder(self, queries: Encoder) -> Encoder:
        """That of the queries."""
        return queries

    def keep_statistics(self) -> Statistics:
        """The `statistics`."""
        return self.statistics

    def first_id(self, count: int) -> int:
        """As of `Index`, in spite of other writers."""
        return self.records.claim_ids(self.build, count)

    def find(
        self, vectors: np.ndarray, k: int, reorder: Reorder | None = None, *, locked: bool = True
    ) -> list[list[Hit]]:
        """As of `Index`; equally far ones are in the order in which they came."""
        if k > MOST:
            raise UserError(f"`k`: expected 1 to {MOST:,}, as Milvus finds, got {k:,}")
        hits: list[list[Hit]] = []
        size = max(1, min(256, _FOUND // k))
        for start in range(0, len(vectors), size):
            questions: list[StoredQuestion] = []
            some = self._search(np.asarray(vectors[start : start + size], np.float32), k)
            width = max(1, *map(len, some))
            distances = np.full((len(some), width), np.inf, np.float32)
            rows = np.full((len(some), width), -1, np.int64)
            for i, found in enumerate(some):
                for j, (distance, entity) in enumerate(found):
                    distances[i, j], rows[i, j] = distance, len(questions)
                    questions.append(as_question(entity))
            entities = FoundQuestions(questions)
            make = reorder or (lambda _, distances, rows, found: found.hits(distances, rows))
            hits += make(start, distances, rows, entities)
        return hits

    def find_rows(self, vectors: np.ndarray, k: int) -> np.ndarray:
        """The field `qpr_row` of the `k` nearest questions of each vector, int64 [n, k]."""
        rows = np.full((len(vectors), k), -1, np.int64)
        for i, found in enumerate(self._search(vectors, k)):
            rows[i, : len(found)] = [entity["qpr_row"] for _, entity in found]
        return rows

    def _search(self, vectors: np.ndarray, k: int) -> list[list[tuple[float, dict[str, Any]]]]:
        """The distance and the entity of the `k` nearest, nearest first; then by `qpr_row`."""
        limit, wide = min(k + _MORE, MOST), False
        found = self._ask(vectors, limit, wide=False)
        # Few lists may have fewer questions than asked for; then all are read, as by FAISS.
        short = [i for i, some in enumerate(found) if len(some) < k]
        if short and any(len(found[i]) < min(k, len(self)) for i in short):
            wide = True
            for i, some in zip(short, self._ask(vectors[short], limit, wide=wide), strict=True):
                found[i] = some
        # Where all beyond the last are as far as it, others may be, too.
        while limit < MOST and (
            more := [i for i, some in enumerate(found) if len(some) == limit and _is_tied(some, k)]
        ):
            limit = min(4 * limit, MOST)
            for i, some in zip(more, self._ask(vectors[more], limit, wide=wide), strict=True):
                found[i] = some
        return [some[:k] for some in found]

    def _ask(
        self, vectors: np.ndarray, limit: int, *, wide: bool
    ) -> list[list[tuple[float, dict[str, Any]]]]:
        how = search_parameters(self.requested, limit, wide=wide)
        found = self.server.call(
            "search",
            self.build,
            data=[*vectors],
            anns_field="vector",
            limit=limit,
            output_fields=READ,
            search_params={"metric_type": self.requested.metric.upper(), "params": how},
            **self._level(),
        )
        sign = -1.0 if self.requested.metric == "ip" else 1.0
        return [
            sorted(
                ((sign * hit["distance"], {**hit["entity"], "id": hit["id"]}) for hit in hits),
                key=lambda pair: (pair[0], pair[1]["qpr_row"]),
            )
            for hits in found
        ]

    def _level(self) -> dict[str, Any]:
        if level := _LEVELS.get(self.consistency):
            return {"consistency_level": level}
        return {"consistency_level": "Customized", "guarantee_timestamp": self._written}

    def _query(self, where: str, fields: list[str], **how: Any) -> list[dict[str, Any]]:
        how |= {"filter": where, "output_fields": fields, **self._level()}
        return [*self.server.call("query", self.build, **how)]

    def _by_key(self, ids: Sequence[Id], fields: list[str]) -> Iterator[dict[str, Any]]:
        for where in conditions(ids):
            yield from self._query(where, fields)

    def missing(self, ids: Sequence[Id]) -> list[Id]:
        """Those of the ids that no question has."""
        there = {found["id"] for found in self._by_key(ids, ["id"])}
        return [value for value in ids if key_of(value) not in there]

    def stored(self, ids: Sequence[Id]) -> list[StoredQuestion | None]:
        """The question of each id with its payload, None where no question has it."""
        there = {found["id"]: as_question(found) for found in self._by_key(ids, READ)}
        return [there.get(key_of(value)) for value in ids]

    def questions(self, ids: Sequence[Id]) -> list[str | None]:
        """The question of each id, None where no question has it."""
        return [None if found is None else found.question for found in self.stored(ids)]

    def put(self, questions: Sequence[StoredQuestion], vectors: np.ndarray) -> None:
        """As of `Index`. Each batch is found when Milvus has acknowledged it, before the next one.

        A failure leaves the batches before it; the same call again completes it.
        """
        own = [key for q in questions if not isinstance(key := id_key(q.id), str)]
        first = time.time_ns()
        ready = [*batches(questions, self.dimension, iter(range(first, first + len(questions))))]
        with self._lock:
            reserve = max(own, default=-1) >= self._reserved
        if reserve:
            self.records.reserve_ids(self.build, max(own) + 1)
            with self._lock:
                self._reserved = max(self._reserved, max(own) + 1)
        start = 0
        for some, entities in ready:
            part = vectors[start : start + len(some)]
            write_entities(self.server, self.build, entities, part)
            self._wrote()
            start += len(some)

    def remove(self, ids: Sequence[Id]) -> None:
        """As of `Index`."""
        for where in conditions(ids):
            self.server.call("delete", self.build, filter=where)
        self._wrote()

    def follow(self, before: MilvusIndex) -> None:
        """Let searches find what this process wrote to the same collection before."""
        if before.build == self.build:
            self._written = before._written

    def _wrote(self) -> None:
        now = self.server.now()
        with self._lock:
            self._written = max(self._written, now)
            self._size_at = -np.inf


def _is_tied(found: Sequence[tuple[float, dict[str, Any]]], k: int) -> bool:
    """Whether the last one found is as far as the last one asked for."""
    return len(found) > k and found[-1][0] == found[k - 1][0]
