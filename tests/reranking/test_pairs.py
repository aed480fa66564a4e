"""The score of a pair: symmetric, and the same in any order and company."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax.reranking.base import TextLists
from qpr_jax.reranking.light import LightReranker
from qpr_jax.reranking.pairs import PairFeatures
from tests.reranking.models import WORDS, WordEncoder, light_model, pair_calibration

MODEL = light_model()
FEATURES = PairFeatures(LightReranker(MODEL, WordEncoder()).extractor)
CALIBRATION = pair_calibration(light=MODEL)
TEXTS = st.lists(st.sampled_from([*WORDS, "rice", "not"]), max_size=5).map(
    lambda words: " ".join(words).strip()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.integers(0, 9))
def test_a_score_depends_on_the_two_texts_alone(texts, seed):
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(len(texts), 1)
    distances = rng.uniform(0, 2, len(first)).astype(np.float32)
    scores = FEATURES.score_pairs(CALIBRATION, texts, first, second, distances)
    assert ((scores > 0) & (scores < 1)).all()
    order = rng.permutation(len(first))
    mixed = FEATURES.score_pairs(CALIBRATION, texts, second[order], first[order], distances[order])
    np.testing.assert_allclose(mixed, scores[order], rtol=1e-5)
    for i in range(len(first)):
        query, hits = texts[first[i]], [texts[second[i]], *texts]
        near = np.append(distances[i], np.ones(len(texts), np.float32)).astype(np.float32)
        found = FEATURES.score_hits(
            CALIBRATION, TextLists([query], hits, near, np.array([0, len(hits)]))
        )
        np.testing.assert_allclose(found[0], scores[i], rtol=1e-5)
        assert found[1 + first[i]] == 1  # a hit with the text of the query
