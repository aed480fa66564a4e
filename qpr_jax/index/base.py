"""What a store of questions does, and what a search returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from qpr_jax.data.tables import Payload
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id
from qpr_jax.index.recipe import Recipe

CLOSE = 0.3  # the least score of a hit that is shown as an answer


class Hit(NamedTuple):
    """An indexed question that a search found.

    distance: squared Euclidean, or the inner product times -1.
    score: how likely it means the same as the query, 0 to 1, by the two texts alone; None without a
      model of pairs.
    payload: what was stored with the question, or None.
    """

    id: Id
    question: str
    distance: float
    score: float | None = None
    payload: Payload | None = None

    @property
    def close(self) -> bool | None:
        """Whether its score is at least CLOSE; None if it has none."""
        return None if self.score is None else self.score >= CLOSE


class Question(NamedTuple):
    """A question to index, or as a store holds it."""

    id: Id
    text: str
    payload: Payload | None = None


class Store(Protocol):
    """Questions and their vectors; safe to use from several threads."""

    recipe: Recipe  # how the vectors are indexed
    encoder: str  # identity of the encoder of the vectors
    dimension: int  # length of a vector
    # Sentences that many texts share, and their counts; None if `recipe.clean` is False.
    shared: Mapping[str, int] | None

    @property
    def location(self) -> str:
        """From where another process opens it: a folder or an address; "": nowhere."""

    @property
    def version(self) -> str:
        """Name of the present state; every change gives another one."""

    def __len__(self) -> int:
        """Return the number of questions."""

    def search(self, vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """Find the `k` nearest questions of each vector float32 [n, d], nearest first."""

    def add(self, questions: Sequence[Question], vectors: np.ndarray) -> None:
        """Store questions of distinct ids and their vectors float32 [n, d]; replace equal ids.

        The change is durable when the call returns.
        """

    def remove(self, ids: Sequence[Id]) -> int:
        """Remove questions and return how many there were; unknown ids change nothing."""

    def get(self, ids: Sequence[Id]) -> list[Question | None]:
        """Return the question of each id, None for an unknown one."""

    def questions(self) -> Iterator[Question]:
        """Yield all questions, in the order in which they were added."""

    def new_ids(self, count: int) -> list[Id]:
        """Return ids that no question has or had."""

    def compact(self) -> None:
        """Build the index again without what was removed; a server does so by itself."""

    def facts(self) -> dict[str, Any]:
        """Return what `qpr info` says of the store; UserError if a file is damaged."""

    def changing(self) -> AbstractContextManager[None]:
        """Hold off the changes of other threads and processes; the holder may change."""


def check_encoder(where: StrPath, found: str, expected: str) -> None:
    """Raise a UserError unless an index is of the encoder of this identity; "": any."""
    if expected and found != expected:
        what = f"expected an index of the encoder {expected[:12]}, got one of {found[:12]}"
        remedy = "load the index again, or build it with this encoder"
        raise UserError(f"{where}: {what}", remedy=remedy)
