"""What an index of vectors must do, what a search returns, and the kinds of index."""

from __future__ import annotations

import pathlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id
from qpr_jax.text.base import as_texts

if TYPE_CHECKING:
    from qpr_jax.index.recipe import Recipe

VectorsOf = Callable[[np.ndarray], np.ndarray]  # rows int64 [n] to vectors float32 [n, d]

# The class of an index by what `Recipe.factory` begins with; imported when it is used.
BACKENDS = dict.fromkeys(("Flat", "SQ", "HNSW", "IVF"), "qpr_jax.index.faiss_index:FaissIndex")


SHARDS = "shards"  # the beginning of the names of folders that hold parts of a build


class Hit(NamedTuple):
    """An indexed question; `distance` is squared Euclidean, or the inner product times -1.

    score: the probability that it means the same as the query, by the second stage, where that
      ordered it; None where it is in the order of distances.
    """

    id: int
    question: str
    distance: float
    score: float | None = None


class StoredQuestion(NamedTuple):
    """A question as the store keeps it; `payload` is any string, or None."""

    id: Id
    question: str
    payload: str | None = None


def stored_questions(
    entries: Iterable[tuple[Id, str]], lines: Sequence[int], source: str
) -> Iterator[StoredQuestion]:
    """The questions to store; a UserError names the line of what is no string.

    lines: the last is that of the entry before it is yielded.
    """
    for value, question in entries:
        yield StoredQuestion(value, *as_texts([question], f"{source}, line {lines[-1]}"))


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
        """Write it, unchanged since it was built, to a file that `read` reads."""

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
        """The index of a file that `save` wrote; its bytes are verified."""
        ...


def backend(factory: str) -> type[VectorIndex]:
    """The class of BACKENDS that indexes by this factory."""
    prefixes = [p for p in BACKENDS if isinstance(factory, str) and factory.startswith(p)]
    if not prefixes:
        raise UserError(
            f"index `factory`: expected a text that begins with {', '.join(BACKENDS)}, as "
            f"`IVF2000,Flat`, got {factory!r}"
        )
    found: type[VectorIndex] = pkgutil.resolve_name(BACKENDS[max(prefixes, key=len)])
    return found
