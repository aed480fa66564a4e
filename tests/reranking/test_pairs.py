"""Scores of found pairs: symmetric, the same in any order."""

import numpy as np
import pytest

from qpr_jax.reranking.light import LightReranker
from qpr_jax.reranking.pairs import score_pairs, split_lists
from tests.reranking.models import WORDS, WordEncoder, light_model

MODEL, ENCODER = light_model(candidates=6), WordEncoder()


@pytest.fixture(scope="module")
def known():
    """Sixty texts in canonical order, and their close pairs."""
    rng = np.random.default_rng(0)
    texts = sorted({" ".join(rng.choice(WORDS, 5)) for _ in range(60)})
    vectors = ENCODER.encode(texts)
    distances = ((vectors[:, None] - vectors) ** 2).sum(axis=2).astype(np.float32)
    first, second = np.nonzero(np.triu(distances < 1.2, 1))
    assert len(first) > 300
    return texts, first, second, distances[first, second]


def test_a_score_is_the_mean_of_both_directions(known):
    texts = known[0]
    distances = np.array([0.5, 0.25, 1], np.float32)
    pairs = np.array([0, 0, 1]), np.array([1, 2, 2]), distances
    found = score_pairs(MODEL, ENCODER, texts, *pairs)
    reranker = LightReranker(MODEL, ENCODER)
    hits = {0: [(2, 0.25), (1, 0.5)], 1: [(0, 0.5), (2, 1)], 2: [(0, 0.25), (1, 1)]}
    raw = {}
    for text, own in hits.items():
        near = np.array([d for _, d in own], np.float32)
        others = [texts[i] for i, _ in own]
        _, scores, _ = reranker.score([texts[text]], others, near, np.array([0, 2]))
        raw |= {(text, i): s for (i, _), s in zip(own, scores, strict=True)}
    expected = [(raw[a, b] + raw[b, a]) / 2 for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found == pytest.approx(expected)
    complete = np.array([True, False, True] + [False] * (len(texts) - 3))
    found = score_pairs(MODEL, ENCODER, texts, *pairs, complete=complete)
    assert found == pytest.approx([raw[0, 1], expected[1], raw[2, 1]])


def test_scores_are_the_same_in_any_order(known):
    texts, *pairs = known
    scores = score_pairs(MODEL, ENCODER, texts, *pairs)
    assert len(np.unique(scores)) > 20
    order = np.random.default_rng(1).permutation(len(scores))
    mixed = [values[order] for values in pairs]
    assert (score_pairs(MODEL, ENCODER, texts, *mixed) == scores[order]).all()
    first, second, distances = pairs
    swapped = score_pairs(MODEL, ENCODER, texts, second, first, distances)
    np.testing.assert_allclose(swapped, scores, rtol=1e-12)
    none = [values[:0] for values in pairs]
    assert len(score_pairs(MODEL, ENCODER, texts, *none)) == 0


def test_pairs_that_are_not_needed_only_take_part(known):
    texts, *pairs = known
    scores = score_pairs(MODEL, ENCODER, texts, *pairs)
    needed = np.arange(len(scores)) % 10 == 0
    found = score_pairs(MODEL, ENCODER, texts, *pairs, needed=needed)
    assert (found[needed] == scores[needed]).all()
    assert not found[~needed].any()


def test_long_lists_are_split():
    lists = split_lists(np.array([0, 4, 5, 9, 1]), 4)
    assert lists.tolist() == [
        [1, 0, 0, 4],
        [2, 0, 0, 4],
        [2, 4, 2, 1],
        [3, 0, 0, 4],
        [3, 4, 2, 2],
        [3, 6, 2, 2],
        [3, 8, 2, 1],
        [4, 0, 0, 1],
    ]
