"""Searching and changing the questions of any index: what all retrievers have in common."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qpr_jax.data.questions import as_entries, as_queries, given_ids
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.ids import Id, check_ids, unknown_ids
from qpr_jax.index.base import Index, StoredQuestion, check_k
from qpr_jax.reranking.base import Rerank
from qpr_jax.reranking.second_stage import SecondStages
from qpr_jax.reranking.stage import Explanation
from qpr_jax.results import Results

if TYPE_CHECKING:
    from qpr_jax.index.question_index import QuestionIndex


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a search reads, which a newer index replaces at once."""

    encoder: Encoder
    index: Index
    second_stages: SecondStages


class Searcher(abc.ABC):
    """The searches and changes of a `Retriever`, whatever index it has."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def encoder(self) -> Encoder:
        """Of the queries."""
        return self._parts.encoder

    @property
    def index(self) -> QuestionIndex:
        """The questions; one of Milvus has the methods of `Index` alone."""
        return cast("QuestionIndex", self._parts.index)

    @index.setter
    def index(self, index: Index) -> None:
        self._parts = dataclasses.replace(self._parts, index=index)

    @property
    def second_stages(self) -> SecondStages:
        """The re-rankers of the encoder."""
        return self._parts.second_stages

    def use_encoder(self, encoder: Encoder) -> None:
        """Encode by this one, of the same identity, whose tables may be made already."""
        stages = self._parts.second_stages.with_encoder(encoder)
        self._parts = dataclasses.replace(self._parts, encoder=encoder, second_stages=stages)

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """Names the questions as this retriever sees them; each change gives another name."""

    @abc.abstractmethod
    def changing(self) -> contextlib.AbstractContextManager[None]:
        """Hold off other changes, `add` and `remove` too, on top of those of other processes."""

    def _newest(self) -> Parts:
        """What a search reads; a retriever whose index others replace looks whether they did."""
        return self._parts

    def search(
        self, queries: Any, k: int = 5, *, text_column: str | None = None, rerank: Rerank = None
    ) -> Results:
        """Find the `k` best questions of each query, best first; all if there are fewer.

        queries, text_column: as `questions` of `build`.
        rerank: the re-ranker of the first hits: "light" or "cross_encoder"; False: none, so that
          hits are sorted by distance; None: light, if there is one.
        """
        count = check_k(k)
        texts = as_queries(queries, text_column)
        now = self._newest()
        stage = now.second_stages.stage(rerank, now.index)
        vectors = now.encoder.encode(texts)
        hits = stage.search(texts, vectors, count) if stage else now.index.find(vectors, count)
        return Results.of(texts, hits)

    def explain(
        self, text: str, other: str | None = None, *, id: Id | None = None, rerank: Rerank = None
    ) -> Explanation:
        """What the stages of a search for `text` think of another text, or of a question by `id`.

        It is looked at among the hits of the search, as if it were one of them.
        """
        now = self._newest()
        return now.second_stages.explain(rerank, now.index, text, other, id)

    def encode(self, queries: Any, *, text_column: str | None = None) -> np.ndarray:
        """Vectors of strings or of the questions of a table, float32 [n, d]; see `build`."""
        return self.encoder.encode(as_queries(queries, text_column))

    def __len__(self) -> int:
        """How many questions can be found."""
        return len(self.index)

    def add(
        self,
        questions: Any,
        ids: Iterable[Id] | None = None,
        payload: bool | Iterable[Any] = True,
        *,
        text_column: str | None = None,
        id_column: str | None = None,
        skip_bad_rows: bool = False,
        state: str | None = None,
    ) -> list[Id]:
        """Add questions; one whose id is there replaces the old one. Returns the ids.

        Arguments as of `build`; questions without ids get numbers that no question has had.
        state: the `state` that they were made for; UserError, and no change, where it is another.
        """
        entries = [*as_entries(questions, ids, payload, text_column, id_column, skip_bad_rows)]
        with self.changing():
            if state is not None and state != self.state:
                raise UserError(
                    "the index was changed meanwhile, so nothing was added",
                    remedy="do the same again",
                )
            given = given_ids(entries)
            first = self.index.first_id(len(entries)) if given is None and entries else 0
            checked = check_ids(given, len(entries), first)
            if checked:
                texts = [entry.question for entry in entries]
                payloads = [entry.payload for entry in entries]
                added = [*map(StoredQuestion, checked, texts, payloads)]
                self.index.put(added, self.index.questions_encoder(self.encoder).encode(texts))
            return checked

    def remove(self, ids: Iterable[Id], *, ignore_missing: bool = False) -> int:
        """Remove the questions of these ids; UserError, and no change, where one is not there.

        ignore_missing: pass over those that are not there instead. Returns how many are removed.
        """
        with self.changing():
            checked = check_ids(ids, None, 0)
            missing = {*self.index.missing(checked)}
            if missing and not ignore_missing:
                raise unknown_ids([value for value in checked if value in missing])
            checked = [value for value in checked if value not in missing]
            if checked:
                self.index.remove(checked)
            return len(checked)
