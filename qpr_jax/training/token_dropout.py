"""Tokens that a step omits, or reads as the sums of their n-grams."""

from __future__ import annotations

import numpy as np

from qpr_jax.training.random_streams import DROPOUT, SPELLING, random_of


def drop_tokens(
    token_ids: np.ndarray, rate: float, *, seed: int, step: int, keep_ends: bool = False
) -> np.ndarray:
    """Drop each token of `token_ids`, int32 [..., L], zero-padded, with probability `rate`.

    The remaining tokens move together. A question that would lose all its tokens keeps them. With
    `keep_ends` the first and the last token, [CLS] and [SEP] of a transformer, are never dropped.
    `step` is counted over the whole training, so that no two steps drop the same tokens.
    """
    rng = random_of(seed, DROPOUT, step)
    present = token_ids > 0
    ends = np.zeros_like(present)
    if keep_ends:
        ends[..., 0] = True
        last = np.maximum(present.sum(axis=-1, keepdims=True) - 1, 0)
        np.put_along_axis(ends, last, True, axis=-1)
    kept = present & (rng.random(token_ids.shape, np.float32) >= rate)
    kept |= present & (ends | ~(kept & ~ends).any(axis=-1, keepdims=True))
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
