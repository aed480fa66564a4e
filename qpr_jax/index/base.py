"""What an index of vectors must do, what a search returns, and the kinds of index."""

from __future__ import annotations

import array
import operator
import pathlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from qpr_jax.data.questions import Payload
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, number_entries, repeated_id
from qpr_jax.text.base import as_texts

if TYPE_CHECKING:
    from qpr_jax.encoders.base import Encoder
    from qpr_jax.index.documents import Documents
    from qpr_jax.index.recipe import Recipe
    from qpr_jax.index.statistics import Statistics

# Called with the number of questions and the first row, with its id, that has the id of an earlier
# row; None where all ids differ.
Check = Callable[[int, tuple[int, Id] | None], object]
VectorsOf = Callable[[np.ndarray], np.ndarray]  # rows int64 [n] to vectors float32 [n, d]

# The class of an index by what `Recipe.factory` begins with; imported when it is used.
BACKENDS = dict.fromkeys(("Flat", "SQ", "HNSW", "IVF"), "qpr_jax.index.faiss_index:FaissIndex")


SUMS = ".npy"  # see `VectorIndex.save`
SHARDS = "shards"  # the beginning of the names of folders that hold parts of a build


class Hit(NamedTuple):
    """An indexed question.

    distance: the encoder's: squared Euclidean, or the inner product times -1.
    score: the probability that it means the same as the query, by the second stage, where that
      ordered it; None where it is in the order of distances.
    payload: what was given with the question; None where nothing was.
    """

    id: Id
    question: str
    distance: float
    score: float | None = None
    payload: Payload | None = None


class Question(NamedTuple):
    """A question to index, or as a store holds it."""

    id: Id
    text: str
    payload: Payload | None = None


class Store(Protocol):
    """Questions and their vectors; safe to use from several threads.

    Attributes:
      recipe: how the vectors are indexed.
      encoder: identity of the encoder of the vectors.
      dimension: length of a vector.
    """

    recipe: Recipe
    encoder: str
    dimension: int

    def __len__(self) -> int:
        """Return the number of questions."""
        ...

    @property
    def version(self) -> str:
        """Name of the present state; every change gives another one."""
        ...

    def search(self, vectors: np.ndarray, k: int, *, payload: bool = True) -> list[list[Hit]]:
        """Find the `k` nearest questions of each vector float32 [n, d], nearest first.

        payload: whether the hits have their payload, which takes time.
        """
        ...

    def add(self, questions: Sequence[Question], vectors: np.ndarray) -> None:
        """Store questions of distinct ids and their vectors float32 [n, d]; replace equal ids.

        The change is durable when the call returns.
        """

    def remove(self, ids: Sequence[Id]) -> int:
        """Remove questions and return how many there were; unknown ids change nothing."""
        ...

    def get(self, ids: Sequence[Id]) -> list[Question | None]:
        """Return the question of each id, None for an unknown one."""
        ...

    def questions(self) -> Iterator[Question]:
        """Yield all questions, in the order in which they were added."""
        ...

    def new_ids(self, count: int) -> list[Id]:
        """Return ids that no question has or had."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Hold off the changes of other threads and processes; the holder may change."""
        ...


class StoredQuestion(NamedTuple):
    """A question as the store keeps it."""

    id: Id
    question: str
    payload: Payload | None = None


def stored_entries(
    entries: Iterable[tuple[int, Id | None, str, Payload | None]], where: str
) -> tuple[Iterator[StoredQuestion], Check]:
    """The questions to store of (line, id, question, payload), and the check of their ids.

    All entries have ids, or none: then they are 0, 1, 2, ...

    where: what a UserError says before the line, as `tickets.csv, line`.
    """
    lines = array.array("q")

    def stored() -> Iterator[StoredQuestion]:
        for value, question, payload in number_entries(entries, lines, where):
            (text,) = as_texts([question], f"{where} {lines[-1]}")
            yield StoredQuestion(value, text, payload)

    def check(count: int, repeated: tuple[int, Id] | None) -> None:
        if repeated is not None:
            raise repeated_id(repeated[1], lines[repeated[0]], where)
        if not count:
            raise UserError(f"{where.rpartition(',')[0]}: expected questions to index, got none")

    return stored(), check


class VectorIndex(Protocol):
    """Vectors by row, searched among the rows that were not removed.

    The calls come under the lock of `QuestionIndex`: any number of searches at once, or one change
    alone.

    Attributes:
      dimension: d of the vectors.
      recipe: as built; of few rows it may have less than was asked for.
      recall: share of the 10 nearest rows, by exact search, that it found when it was built.
    """

    dimension: int
    recipe: Recipe
    recall: float

    def __len__(self) -> int:
        """How many rows a search can find."""
        ...

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors float32 [n, d] as rows int64 [n], the next ones in order."""

    def remove(self, rows: np.ndarray) -> None:
        """Find these rows, int64 [n], no more; rows that are removed already change nothing."""

    def search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` nearest rows of each vector float32 [n, d], nearest first.

        Returns:
          Distances float32 [n, k] and rows int64 [n, k]; inf and -1 where there are fewer rows.
        """
        ...

    def save(self, path: StrPath) -> None:
        """Write it, unchanged since it was built, to a file that `read` reads.

        If its bytes are to be verified by `read` and `search`, not before, a second file has what
        they need for it: `path` with the suffix SUMS, which is verified before.
        """

    @staticmethod
    def check(recipe: Recipe, dimension: int) -> None:
        """Raise a UserError where `recipe.factory` cannot index vectors of this dimension."""

    @staticmethod
    def fit(recipe: Recipe, count: int) -> Recipe:
        """The recipe with no more than `count` rows can train; called with `count` 0, too."""
        ...

    @classmethod
    def build(
        cls, recipe: Recipe, vectors_of: VectorsOf, count: int, folder: pathlib.Path | None
    ) -> Self:
        """Index `count` (1 or more) rows by a recipe of `fit`.

        Parts may be written to folders of `folder` whose names begin with SHARDS.
        """
        ...

    @classmethod
    def empty(cls, recipe: Recipe, dimension: int) -> Self:
        """An index of no rows, by a recipe of `fit`."""
        ...

    @classmethod
    def read(cls, path: StrPath, recipe: Recipe, recall: float, dimension: int) -> Self:
        """The index of a file that `save` wrote; its bytes are verified, or those of SUMS."""
        ...


class Found(Protocol):
    """The questions of what a search found, by its rows, int64; -1 for none."""

    def fields(self, rows: np.ndarray) -> tuple[list[Id], list[str]]:
        """The ids and texts of rows [n], all of which were found."""
        ...

    def payloads(self, rows: np.ndarray) -> list[Payload | None]:
        """The payloads of rows [n], all of which were found."""
        ...

    def hits(self, distances: np.ndarray, rows: np.ndarray) -> list[list[Hit]]:
        """The hits of distances float32 and rows, [n, k]."""
        ...


# The hits of some queries, made of the number of the first of them, of the distances and the rows,
# [n, k], of what was found for each, and of the questions of these rows.
Reorder = Callable[[int, np.ndarray, np.ndarray, Found], list[list[Hit]]]


class Index(Protocol):
    """What a retriever and its second stages need of an index; safe to use from several threads.

    Attributes:
      requested, recipe: how it was asked to index, and how it does.
      encoder: the identity of the encoder of the questions.
      documents: this encoder, where another one encodes the queries; otherwise None.
    """

    requested: Recipe
    encoder: str
    documents: Documents | None

    @property
    def recipe(self) -> Recipe: ...  # noqa: D102

    def __len__(self) -> int: ...

    def find(
        self, vectors: np.ndarray, k: int, reorder: Reorder | None = None, *, locked: bool = True
    ) -> list[list[Hit]]:
        """For each vector its `k` nearest questions, nearest first; all where there are fewer.

        reorder: makes the hits of what was found. If `locked`, no change of this process comes
          between it and the search, so that it may read `keep_statistics`.
        """
        ...

    def put(self, questions: Sequence[StoredQuestion], vectors: np.ndarray) -> None:
        """Add questions with distinct ids; one whose id is there replaces the old one."""

    def remove(self, ids: Sequence[Id]) -> None:
        """Remove the questions of these ids; those that are not there change nothing."""

    def missing(self, ids: Sequence[Id]) -> list[Id]:
        """Those of the ids that no question has."""
        ...

    def stored(self, ids: Sequence[Id]) -> list[StoredQuestion | None]:
        """The question of each id with its payload, None where no question has it."""
        ...

    def questions(self, ids: Sequence[Id]) -> list[str | None]:
        """The question of each id, None where no question has it."""
        ...

    def first_id(self, count: int) -> int:
        """The first of `count` consecutive numbers that are the ids of no question, nor were."""
        ...

    def questions_encoder(self, queries: Encoder) -> Encoder:
        """The encoder of the questions: that of the `queries`, if it has no other."""
        ...

    def keep_statistics(self) -> Statistics:
        """Document frequencies of the words of its questions."""
        ...


def check_k(k: object) -> int:
    """How many hits a search returns; UserError unless it is a whole number from 1 on."""
    try:
        count = operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"`k`: expected a whole number, got {k!r}") from None
    if count < 1:
        raise UserError(f"`k`: expected 1 or more, got {k}")
    return count


def backend(factory: str) -> type[VectorIndex]:
    """The class of BACKENDS that indexes by this factory."""
    prefixes = [p for p in BACKENDS if isinstance(factory, str) and factory.startswith(p)]
    if not prefixes:
        raise UserError(
            f"expected a text that begins with {', '.join(BACKENDS)}, as `IVF2000,Flat`, got "
            f"{factory!r}",
            setting="factory",
        )
    found: type[VectorIndex] = pkgutil.resolve_name(BACKENDS[max(prefixes, key=len)])
    return found
