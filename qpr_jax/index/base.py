"""What an index of vectors must do, what a search returns, and the kinds of index."""

from __future__ import annotations

from typing import NamedTuple

from qpr_jax.ids import Id


class Hit(NamedTuple):
    """An indexed question; `distance` is squared Euclidean, or the inner product times -1."""

    id: int
    question: str
    distance: float


class StoredQuestion(NamedTuple):
    """A question as the store keeps it; `payload` is JSON, or None."""

    id: Id
    question: str
    payload: str | None = None
