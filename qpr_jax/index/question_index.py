"""The questions that can be found: added, replaced and removed while searches go on."""

from __future__ import annotations

import logging
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qpr_jax.encoders.base import Encoder, encode_in_parts
from qpr_jax.errors import UserError
from qpr_jax.ids import Id, check_ids, id_key
from qpr_jax.index.base import Check, Hit, Reorder, StoredQuestion, VectorIndex, backend
from qpr_jax.index.built_questions import accept, write_questions
from qpr_jax.index.question_store import Changes, QuestionStore
from qpr_jax.index.recipe import Recipe, check_recipe, fit_recipe
from qpr_jax.locks import ReadersWriterLock

if TYPE_CHECKING:
    from qpr_jax.index.documents import Documents
    from qpr_jax.index.statistics import Statistics

log = logging.getLogger(__name__)

Encode = Callable[[Sequence[str]], np.ndarray]

GOOD_RECALL = 0.95
DEFAULT = Recipe()
_MANY = 10**9  # questions, more than any recipe asks for
_COUNTED = 65_536  # texts in memory at once while they are counted
_REORDERED = 256  # queries whose hits are in memory at once while they are reordered


class QuestionIndex:
    """A searchable set of questions.

    Any number of threads may search while one, which holds the `WriteLock`, adds or removes: a
    search sees a change whole or not at all.

    Attributes:
      vectors: row i is that of the question in row i of `store`.
      requested: the recipe that was asked for; `vectors.recipe` is as built.
      encoder: the identity of the encoder of the questions.
      documents: this encoder, where another one encodes the queries; otherwise None.
      statistics: of the texts of all questions; None until `keep_statistics`.
      stale: a change failed half way, so that the index must be read from its folder again.
    """

    def __init__(
        self,
        vectors: VectorIndex,
        store: QuestionStore,
        requested: Recipe,
        encoder: str,
        *,
        built_statistics: Callable[[], Statistics | None] = lambda: None,
        documents: Documents | None = None,
    ) -> None:
        """built_statistics: reads those of the questions of the build, where they were kept."""
        self.vectors, self.store, self.requested, self.encoder = vectors, store, requested, encoder
        self.documents = documents
        self.fields, self.payloads = store.fields, store.payloads  # of `Found`
        self.statistics: Statistics | None = None
        self.stale = False
        self._built_statistics = built_statistics
        self._lock = ReadersWriterLock()
        self._counting = threading.Lock()  # held before the other
        # What searches see: the last change, and the rows up to it.
        self._sequence, self._rows = store.sequence, store.rows

    def __len__(self) -> int:
        """How many questions can be found."""
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"<QuestionIndex: {len(self):,} questions, {self.vectors!r}>"

    def __iter__(self) -> Iterator[tuple[Id, str]]:
        """Id and question of all, in the order in which they came."""
        for value, question, _ in self.store:
            yield value, question

    @property
    def recipe(self) -> Recipe:
        """The recipe as built: for few questions with fewer lists than asked for."""
        return self.vectors.recipe

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.vectors.dimension

    @property
    def next_id(self) -> int:
        """Ids from here on are given to questions that come without one."""
        return self.store.next_id

    @property
    def changed(self) -> bool:
        """Whether questions came or went since it was built."""
        return self.store.sequence > 0

    @property
    def rows(self) -> int:
        """How many rows of `store` searches see, some of them removed."""
        return self._rows

    def questions_encoder(self, queries: Encoder) -> Encoder:
        """The encoder of the questions: that of the `queries`, if it has no other."""
        return queries if self.documents is None else self.documents.encoder

    def live_ids(self) -> list[Id]:
        """The ids of all questions, in the order in which they came."""
        return self.store.fields(self.store.live_rows())[0]

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` nearest rows of each vector float32 [n, d], nearest first.

        A compaction changes the rows; `find` returns ids, which stay.

        Returns:
          Distances float32 [n, k] and rows int64 [n, k]; inf and -1 beyond the number of questions.
        """
        with self._lock.reading():
            return self._search(vectors, k)

    def first_id(self, count: int) -> int:
        """As of `Index`."""
        return self.next_id

    def find(
        self, vectors: np.ndarray, k: int, reorder: Reorder | None = None, *, locked: bool = True
    ) -> list[list[Hit]]:
        """As of `Index`."""
        if reorder is not None and not locked:
            return reorder(0, *self.search(vectors, min(k, max(1, len(self)))), self)
        with self._lock.reading():
            distances, rows = self._search(vectors, min(k, max(1, len(self))))
            if reorder is not None:
                starts = range(0, len(rows), _REORDERED)
                parts = [(start, slice(start, start + _REORDERED)) for start in starts]
                return [
                    hit
                    for at, part in parts
                    for hit in reorder(at, distances[part], rows[part], self)
                ]
        return self.hits(distances, rows)

    def hits(self, distances: np.ndarray, rows: np.ndarray) -> list[list[Hit]]:
        """The hits of distances and rows, [n, k], -1 for none; rows may be removed."""
        found = rows >= 0
        ids, questions, payloads = self.store.columns(rows[found])
        unknown = [None] * len(ids)
        hits = [*map(Hit, ids, questions, distances[found].tolist(), unknown, payloads)]
        stops = np.cumsum(found.sum(axis=1)).tolist()
        return [hits[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        vectors = np.ascontiguousarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise UserError(
                f"`vectors`: expected [n, {self.dimension}], got {list(vectors.shape)}; "
                "encode the queries with the encoder of the index"
            )
        if k < 1:
            raise UserError(f"`k`: expected 1 or more, got {k}")
        size = min(k, len(self))
        if size == k:
            return self.vectors.search(vectors, k)
        distances = np.full((len(vectors), k), np.inf, np.float32)
        rows = np.full((len(vectors), k), -1, np.int64)
        if size:
            distances[:, :size], rows[:, :size] = self.vectors.search(vectors, size)
        return distances, rows

    def put(self, questions: Sequence[StoredQuestion], vectors: np.ndarray) -> None:
        """Add questions with distinct ids; one whose id is there replaces the old one.

        vectors: float32 [n, d].
        """
        self._change(questions, np.ascontiguousarray(vectors, np.float32), [])

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove the questions of these ids; those that are not there change nothing."""
        distinct = [*{id_key(value): value for value in ids}.values()]
        self._change([], np.zeros((0, self.dimension), np.float32), distinct)

    def catch_up(self) -> None:
        """Take in what other processes changed in the folder."""
        sequence, self.stale = self.store.sequence, True
        self._apply(self.store.changes_since(sequence))
        self.stale = False

    def _change(
        self, add: Sequence[StoredQuestion], vectors: np.ndarray, remove: Sequence[Id]
    ) -> None:
        sequence, self.stale = self.store.sequence, True
        rows = self.store.change(add, vectors, remove)
        self._apply(Changes(rows, vectors, self.store.removed_since(sequence)))
        self.stale = False

    def _apply(self, changes: Changes) -> None:
        if len(changes.added) or len(changes.removed):
            with self._lock.writing():
                if len(changes.added):
                    self.vectors.add(changes.added, changes.vectors)
                if len(changes.removed):
                    self.vectors.remove(changes.removed)
                if self.statistics is not None:
                    self._count(self.statistics, changes.added, changes.removed)
                self._sequence, self._rows = self.store.sequence, self.store.rows

    def keep_statistics(self) -> Statistics:
        """The `statistics`, made at the first call, and then kept up to date.

        They are read while no change can come, as in `reorder` of `find`.
        """
        with self._counting:
            if self.statistics is None:  # else another thread was faster
                with self._lock.reading():
                    sequence, rows = self._sequence, self._rows
                # Without the lock, for which a change would wait, and then all searches.
                statistics = self._make_statistics(sequence, rows)
                with self._lock.writing():
                    gone = self.store.removed_until(self._sequence)
                    later = gone[len(self.store.removed_until(sequence)) :]
                    self._count(statistics, np.arange(rows, self._rows), later)
                    self.statistics = statistics
        return self.statistics

    def _make_statistics(self, sequence: int, rows: int) -> Statistics:
        """Statistics of the questions after change `sequence`, with which there were `rows`."""
        from qpr_jax.index.statistics import Statistics

        built = self.store.built_rows
        statistics = self._built_statistics()
        if statistics is None:
            log.info("counting the words of %s questions", f"{len(self):,}")
            statistics = Statistics()
            self._count(statistics, np.arange(built), np.arange(0))
        removed = self.store.removed_until(sequence)
        self._count(statistics, np.arange(built, rows), removed)
        return statistics

    def _count(self, statistics: Statistics, added: np.ndarray, removed: np.ndarray) -> None:
        """Take the texts of rows that came and went into statistics."""
        for rows, change in ((added, statistics.add), (removed, statistics.remove)):
            for start in range(0, len(rows), _COUNTED):
                change(self.store.fields(rows[start : start + _COUNTED])[1])

    def missing(self, ids: Sequence[Id]) -> list[Id]:
        """Those of the ids that no question has."""
        rows = self.store.rows_of(ids).tolist()
        return [value for value, row in zip(ids, rows, strict=True) if row < 0]

    def stored(self, ids: Sequence[Id]) -> list[StoredQuestion | None]:
        """The question of each id with its payload, None where no question has it."""
        rows = self.store.rows_of(ids)
        found = iter(self.store.get(rows[rows >= 0]))
        return [next(found) if row >= 0 else None for row in rows.tolist()]

    def questions(self, ids: Sequence[Id]) -> list[str | None]:
        """The question of each id, None where no question has it."""
        return [None if found is None else found.question for found in self.stored(ids)]


def build_vectors(
    encode: Encode, store: QuestionStore, requested: Recipe, *, folder: pathlib.Path | None = None
) -> VectorIndex:
    """Index the questions of a store without changes, by as much of a recipe as they can train.

    folder: for parts of a large index while it is built.
    """
    (first,) = store.get([0]) if len(store) else (StoredQuestion(0, ""),)
    dimension = encode([first.question]).shape[1]
    check_recipe(requested, dimension)
    recipe = fit_recipe(requested, len(store))
    kind = backend(recipe.factory)
    if not len(store):
        return kind.empty(recipe, dimension)

    def vectors_of(rows: np.ndarray) -> np.ndarray:
        def texts_of(part: slice) -> list[str]:
            return store.fields(rows[part])[1]

        return encode_in_parts(encode, texts_of, len(rows), dimension)

    return kind.build(recipe, vectors_of, len(store), folder)


def build_index(
    encode: Encode,
    questions: Sequence[str],
    ids: Sequence[Id] | None = None,
    *,
    recipe: Recipe = DEFAULT,
    encoder: str,
    log: Callable[[str], object] = print,
) -> QuestionIndex:
    """Encode questions in a stream into an index; all in memory.

    Args:
      encode: questions to float32 [n, d], for any of the questions.
      questions: one or more strings.
      ids: distinct, one a question; 0, 1, 2, ... where None.
      recipe: of few questions, fewer lists are made than it names (see `fit_recipe`).
      encoder: identity of the encoder, kept with the index.
      log: gets a line that says what is built, and a warning where its recall is below 0.95.
    """
    if len(questions) == 0:
        raise UserError("`questions`: expected one or more, got none")
    entries = map(StoredQuestion, check_ids(ids, len(questions), 0), questions)
    return index_in_memory(entries, encode, recipe, encoder, log=log)


def index_in_memory(
    questions: Iterable[StoredQuestion],
    encode: Encode,
    recipe: Recipe,
    encoder: str,
    next_id: int = 0,
    *,
    documents: Documents | None = None,
    log: Callable[[str], object] = lambda line: None,
    check: Check = accept,
) -> QuestionIndex:
    """Index questions, none or more; arguments as of `build_index` and `write_questions`."""
    store = QuestionStore(write_questions(questions, None, check=check), next_id=next_id)
    vectors = build_vectors(encode, store, recipe)
    log_build(vectors, recipe, log)
    return QuestionIndex(vectors, store, recipe, encoder, documents=documents)


def log_build(vectors: VectorIndex, requested: Recipe, log: Callable[[str], object]) -> None:
    """Log what was built, and a warning where it misses too many of the nearest."""
    built, recall, note = vectors.recipe, vectors.recall, ""
    if built.factory != requested.factory:
        # A recipe may have so few lists that a search would read them all, of however many rows.
        enough = fit_recipe(requested, _MANY).factory == requested.factory
        reason = "is for more questions" if enough else f"has no more than {requested.probes} lists"
        note = f" ({requested.factory} {reason})"
    log(f"index: {built.factory}{note}, {len(vectors):,} questions, recall@10 {recall:.3f}")
    if recall < GOOD_RECALL:
        log(
            f"warning: recall@10 is {recall:.3f} (good: {GOOD_RECALL}); raise `probes` or "
            "`assignments`, at the cost of time"
        )
