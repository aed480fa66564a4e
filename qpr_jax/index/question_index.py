"""The questions that can be found: added, replaced and removed while searches go on."""

from __future__ import annotations

import array
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.index.faiss_index import (
    FAISS_METRICS,
    Recipe,
    add_vectors,
    build_vectors,
    check_recipe,
    recipe_for,
    search_vectors,
)
from qpr_jax.index.question_store import Texts, texts_of
from qpr_jax.locks import ReadersWriterLock
from qpr_jax.text.base import as_texts

Encode = Callable[[Sequence[str]], np.ndarray]

RECALL_WANTED = 0.95
DEFAULT = Recipe()


class Found(NamedTuple):
    """An indexed question; `distance` is squared Euclidean, or the inner product times -1."""

    id: int
    question: str
    distance: float


@dataclass(eq=False)
class Rows:
    """Everything that a compaction makes anew. Row i of `vectors` is of text i and `ids[i]`.

    texts: of the first rows. added: texts of the rows after. ids: int64, and dead: bool, both of
    the first `count` places. alive: a bit a row for FAISS, None where no row is dead. recipe: as
    built. recall: of the 10 nearest, among the rows it was built of. dimension: of a vector as the
    encoder makes it.
    """

    vectors: faiss.Index
    texts: Texts
    ids: np.ndarray
    recipe: Recipe
    recall: float
    dimension: int
    added: list[str] = field(default_factory=list)
    dead: np.ndarray = field(init=False)
    alive: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.count = len(self.ids)
        self.dead = np.zeros(self.count, bool)
        self.deaths = 0
        self._recent: dict[int, int] = {}
        self._order: np.ndarray | None = None

    @property
    def changed(self) -> bool:
        """Whether rows came or went since it was built."""
        return bool(self.added) or self.deaths > 0

    def text(self, row: int) -> str:
        """The question of a row."""
        built = len(self.texts)
        return self.texts[row] if row < built else self.added[row - built]

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """The living row of each id, int64 [n], -1 where there is none."""
        built = len(self.texts)
        rows = np.full(len(ids), -1, np.int64)
        if self._order is None:
            self._order = np.argsort(self.ids[:built], kind="stable")
            self._sorted = self.ids[:built][self._order]
        places = np.searchsorted(self._sorted, ids)
        known = np.flatnonzero(places < built)
        known = known[self._sorted[places[known]] == ids[known]]
        found = self._order[places[known]]
        rows[known] = np.where(self.dead[found], -1, found)
        for i, value in enumerate(ids.tolist()):
            if (row := self._recent.get(value)) is not None and not self.dead[row]:
                rows[i] = row
        return rows

    def bury(self, rows: np.ndarray) -> None:
        """These rows are not found any more."""
        self.dead[rows] = True
        self.deaths += len(rows)
        self._tell_faiss()

    def append(self, ids: np.ndarray, questions: Sequence[str], vectors: np.ndarray) -> None:
        """New rows at the end; their ids are of no living row."""
        stop = self.count + len(ids)
        if stop > len(self.ids):
            room = max(stop, 2 * len(self.ids)) - self.count
            self.ids = np.concatenate([self.ids[: self.count], np.zeros(room, np.int64)])
            self.dead = np.concatenate([self.dead[: self.count], np.zeros(room, bool)])
        rows = np.arange(self.count, stop)
        self.ids[self.count : stop] = ids
        add_vectors(self.vectors, vectors, rows, self.recipe.assignments)
        self.added += questions
        self._recent.update(zip(ids.tolist(), rows.tolist(), strict=True))
        self.count = stop
        self._tell_faiss()

    def _tell_faiss(self) -> None:
        if self.deaths:
            self.alive = np.packbits(~self.dead[: self.count], bitorder="little")


class QuestionIndex:
    """A searchable set of questions, each with an id from 0 to 2^63 - 1.

    Any number of threads may search while one adds or removes: a search sees a change whole or
    not at all. `encoder` is the identity of the encoder, `wanted` the recipe that was asked for.
    """

    def __init__(self, rows: Rows, wanted: Recipe, encoder: str, next_id: int = 0) -> None:
        """next_id: ids from there on are given to questions that come without one."""
        self.wanted, self.encoder = wanted, encoder
        self.next_id = max(next_id, 1 + int(rows.ids.max(initial=-1)))
        self.rows = rows
        self._lock = ReadersWriterLock()
        self._writer = threading.Lock()

    def __len__(self) -> int:
        """How many questions can be found."""
        return self.rows.count - self.rows.deaths

    @property
    def recipe(self) -> Recipe:
        """The recipe as built: for few questions with fewer lists than wanted."""
        return self.rows.recipe

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.rows.dimension

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` nearest rows of each vector float32 [n, d], nearest first.

        Distances float32 [n, k] and rows int64 [n, k]; inf and -1 beyond the number of questions.
        A compaction numbers rows anew; `find` gives what lasts.
        """
        with self._lock.reading():
            return self._search(vectors, k)

    def find(self, vectors: np.ndarray, k: int) -> list[list[Found]]:
        """For each vector its `k` nearest questions, nearest first; all where there are fewer."""
        with self._lock.reading():
            rows = self.rows
            near, at = self._search(vectors, min(k, max(1, len(self))))
            return [
                [
                    Found(int(rows.ids[row]), rows.text(row), distance)
                    for row, distance in zip(*places, strict=True)
                    if row >= 0
                ]
                for places in zip(at.tolist(), near.tolist(), strict=True)
            ]

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        vectors = np.ascontiguousarray(vectors, np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise UserError(
                f"`vectors`: expected [n, {self.dimension}], got {list(vectors.shape)}; "
                "encode the queries with the encoder of the index"
            )
        if k < 1:
            raise UserError(f"`k`: expected 1 or more, got {k}")
        near = np.full((len(vectors), k), np.inf, np.float32)
        at = np.full((len(vectors), k), -1, np.int64)
        if reach := min(k, len(self)):
            rows = self.rows
            near[:, :reach], at[:, :reach] = search_vectors(
                rows.vectors, rows.recipe, vectors, reach, rows.alive
            )
        return near, at

    def put(self, ids: np.ndarray, questions: Sequence[str], vectors: np.ndarray) -> None:
        """Add questions; one whose id is there replaces the old one.

        ids: int64 [n], distinct, of `checked_ids`. vectors: float32 [n, d].
        """
        with self._writer:
            old = self.rows.rows_of(ids)  # the first time slow
            vectors = np.ascontiguousarray(vectors, np.float32)
            with self._lock.writing():
                self._put(ids, questions, vectors, old)

    def _put(
        self, ids: np.ndarray, questions: Sequence[str], vectors: np.ndarray, old: np.ndarray
    ) -> None:
        if (gone := old[old >= 0]).size:
            self.rows.bury(gone)
        self.rows.append(ids, questions, vectors)
        self.next_id = max(self.next_id, 1 + int(ids.max(initial=-1)))

    def remove(self, ids: np.ndarray) -> None:
        """Remove the questions of these ids, int64 [n]; those that are not there change nothing."""
        with self._writer:
            rows = np.unique(self.rows.rows_of(ids))
            with self._lock.writing():
                self.rows.bury(rows[rows >= 0])

    def missing(self, ids: np.ndarray) -> list[int]:
        """Those of the ids, int64 [n], that no question has."""
        with self._writer:
            return ids[self.rows.rows_of(ids) < 0].tolist()

    def questions(self, ids: np.ndarray) -> list[str | None]:
        """The question of each id, int64 [n], None where no question has it."""
        with self._writer:
            rows = self.rows
            return [rows.text(row) if row >= 0 else None for row in rows.rows_of(ids).tolist()]

    def living(self) -> np.ndarray:
        """The rows of all questions, int64 [n], in order."""
        rows = self.rows
        return np.flatnonzero(~rows.dead[: rows.count])

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Id and question of all, in the order in which they came."""
        rows = self.rows
        for row in self.living().tolist():
            yield int(rows.ids[row]), rows.text(row)

    def replace(self, rows: Rows) -> None:
        """Take the rows of a compaction for the present ones, which hold the same questions."""
        with self._writer, self._lock.writing():
            self.rows = rows


def build_rows(
    encode: Encode,
    texts: Texts,
    ids: np.ndarray,
    wanted: Recipe,
    *,
    shards: pathlib.Path | None = None,
) -> Rows:
    """Index texts with ids int64 [n] by a recipe, or as much of it as so many rows can train.

    shards: a folder for parts of a large index while it is built.
    """
    dimension = encode([texts[0] if len(texts) else ""]).shape[1]
    check_recipe(wanted, dimension)
    if len(texts) == 0:
        empty = faiss.IndexFlat(dimension, FAISS_METRICS[wanted.metric])
        flat = dataclasses.replace(wanted, factory="Flat", assignments=1)
        return Rows(empty, texts, ids, flat, 1.0, dimension)
    recipe = recipe_for(wanted, len(texts))
    vectors, recall = build_vectors(
        recipe, lambda rows: encode(texts.some(rows.tolist())), len(texts), shards=shards
    )
    return Rows(vectors, texts, ids, recipe, recall, dimension)


def build_index(
    encode: Encode,
    questions: Sequence[str],
    ids: Sequence[int] | None = None,
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
      recipe: of few questions, fewer lists are made than it names (see `vectors.recipe_for`).
      encoder: identity of the encoder, kept with the index.
      log: is told what is built, and its recall where that is less than 0.95.
    """
    if len(questions) == 0:
        raise UserError("`questions`: expected one or more, got none")
    checked = checked_ids(ids, len(questions), 0)
    rows = build_rows(encode, texts_of(questions), checked, recipe)
    tell(rows, recipe, log)
    return QuestionIndex(rows, recipe, encoder)


def tell(rows: Rows, wanted: Recipe, log: Callable[[str], object]) -> None:
    """What was built, and a warning where it misses too many of the nearest."""
    built, recall = rows.recipe, rows.recall
    note = "" if built.factory == wanted.factory else f" ({wanted.factory} is for more questions)"
    log(f"index: {built.factory}{note}, {rows.count:,} questions, recall@10 {recall:.3f}")
    if recall < RECALL_WANTED:
        log(
            f"warning: the index finds {recall:.3f} of the 10 nearest, less than {RECALL_WANTED}; "
            "more probes or assignments find more, and take more time"
        )


def checked_ids(ids: Sequence[int] | None, count: int, next_id: int) -> np.ndarray:
    """Distinct ids int64 [count]; the next free ones where None; UserError for anything else."""
    if ids is None:
        if next_id + count > 2**63:
            raise UserError(
                f"`ids`: expected ids, got none, and fewer than {count} are left above the greatest"
            )
        return np.arange(count) + next_id if count else np.zeros(0, np.int64)
    result = [checked_id(value, f"at position {i}") for i, value in enumerate(ids)]
    if len(result) != count:
        raise UserError(f"`ids`: expected one a question ({count}), got {len(result)}")
    if len(set(result)) != count:
        seen: set[int] = set()
        twice = next(i for i in result if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise UserError(f"`ids`: expected distinct ids, got {twice!r} twice")
    return np.array(result, np.int64)


def checked_id(value: object, where: str) -> int:
    """An id as a Python int; UserError, which says `where`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"`ids`: expected whole numbers, got {value!r} {where}")
    if not 0 <= value < 2**63:
        raise UserError(f"`ids`: expected 0 to {2**63 - 1}, got {value} {where}")
    return int(value)


def numbered(
    entries: Iterable[tuple[int, int | None, str]], lines: array.array[int], source: str
) -> Iterator[tuple[int, str]]:
    """(id, question) of each entry; the lines are noted down."""
    with_ids: bool | None = None
    for number, (line, value, question) in enumerate(entries):
        if with_ids is None:
            with_ids = value is not None
        if with_ids != (value is not None):
            raise UserError(
                f"{source}, line {line}: expected {'an' if with_ids else 'no'} id, as in the rows "
                "before; give one to every question, or to none"
            )
        (text,) = as_texts([question], f"{source}, line {line}")
        lines.append(line)
        yield number if value is None else checked_id(value, f"in {source}, line {line}"), text


def refuse_repeated(ids: np.ndarray, lines: Sequence[int], source: str) -> None:
    """UserError, which names the line, where an id of int64 [n] stands twice."""
    order = np.argsort(ids, kind="stable")
    again = order[1:][np.diff(ids[order]) == 0]
    if len(again):
        first = again.min()
        raise UserError(
            f"{source}, line {lines[first]}: the id {ids[first]} stands twice; "
            "give each question its own"
        )
