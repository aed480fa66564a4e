"""Tokens that a step omits, or reads as the sums of their n-grams."""

from __future__ import annotations

import numpy as np

from qpr_jax.training.random_streams import DROPOUT, SPELLING, random_of


def drop_tokens(token_ids: np.ndarray, rate: float, *, seed: int, step: int) -> np.ndarray:
    """Leave each token of `token_ids`, int32 [..., L], zero-padded, out with probability `rate`.

    The remaining tokens move together; a question that would lose all its tokens keeps them. `step`
    is counted over the whole training, so that no two steps drop alike.
    """
    rng = random_of(seed, DROPOUT, step)
    kept = (token_ids > 0) & (rng.random(token_ids.shape, np.float32) >= rate)
    kept |= (token_ids > 0) & ~kept.any(axis=-1, keepdims=True)
    first = np.argsort(~kept, axis=-1, kind="stable")
    return np.take_along_axis(np.where(kept, token_ids, 0), first, axis=-1)


def spell_tokens(
    token_ids: np.ndarray, rate: float, spelled: np.ndarray, *, seed: int, step: int
) -> np.ndarray:
    """Replace each word of `token_ids` by the sum of its n-grams with probability `rate`.

    spelled: int32 [V], the id of that sum for each row of the embedding table, or the row itself.
    """
    rng = random_of(seed, SPELLING, step)
    chosen = (token_ids < len(spelled)) & (rng.random(token_ids.shape, np.float32) < rate)
    return np.where(chosen, spelled[np.where(chosen, token_ids, 0)], token_ids)
