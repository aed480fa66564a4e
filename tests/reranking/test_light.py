"""The light re-ranker: its identity and its order."""

import dataclasses

import numpy as np
import pytest

from qpr_jax.index.base import Hit
from qpr_jax.reranking.base import TextLists, rank_hits
from qpr_jax.reranking.light import LightReranker, predict
from tests.reranking.models import WordEncoder, column, light_model, network
from tests.reranking.test_features import CORPUS

# Sorted by minus the distance, by the same distances: the network's only input.
FAR_FIRST = {"network": column("distance")}
HITS = [Hit(7, "price", 0.1), Hit(5, "car", 0.2), Hit(4, "", 0.3), Hit(1, "what", 0.4)]


def reranker(**changes) -> LightReranker:
    return LightReranker(light_model(**(FAR_FIRST | changes)), WordEncoder())


def test_the_network_equals_numpy():
    made, rows = network(columns=3), np.random.default_rng(1).normal(size=(50, 3))
    z = ((rows - made.mean) * made.scale).clip(-4, 4)
    expected = z @ made.linear + np.maximum(z @ made.hidden + made.bias, 0) @ made.output
    found = predict(made, rows.astype(np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert (predict(made, rows[7:9].astype(np.float32)) == found[7:9]).all()


def test_the_identity_depends_on_what_is_computed():
    model = light_model()
    same = dataclasses.replace(model, settings={"a": 1})
    assert model.identity == same.identity
    for changes in ({"candidates": 4}, {"network": network(1)}, FAR_FIRST):
        assert model.identity != dataclasses.replace(model, **changes).identity


def test_the_first_hits_are_ordered_by_score_and_the_others_follow():
    hits = [hit._replace(payload={"a": hit.id}) for hit in HITS]
    found, none, two = reranker().rerank(["q", "b", "c"], [hits, [], HITS[2:]])
    assert [hit.id for hit in found] == [4, 5, 7, 1]
    assert sorted(found, key=lambda hit: hit.distance) == hits
    assert (none, [hit.id for hit in two]) == ([], [1, 4])
    assert reranker().rerank([], []) == []
    features, scores = reranker().score_copies(TextLists.of(["q"], [HITS]))
    assert features.shape == (4, len(light_model().features))
    assert scores.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # Inner products are read as squares.
    model = light_model(network=network())
    squares = [hit._replace(distance=2 + 2 * hit.distance) for hit in HITS]
    (expected,) = LightReranker(model, WordEncoder()).rerank(["what"], [squares])
    (found,) = LightReranker(model, WordEncoder(), metric="ip").rerank(["what"], [HITS])
    assert [hit.id for hit in found] == [hit.id for hit in expected]


def test_ties_and_scores_that_are_no_numbers_have_one_order():
    scores = np.array([np.nan, 1.0, np.inf, np.nan, np.inf, 1.0, -np.inf])
    distances = np.array([0.2, 0.5, 0.4, 0.1, 0.4, 0.3, 0.0], np.float32)
    for kept, expected in (
        (np.arange(7), [2, 4, 5, 1, 6, 3, 0]),
        (np.array([0, 1, 3]), [1, 3, 0]),
        (np.array([4, 2]), [2, 4]),
    ):
        for seed in range(5):
            at = kept[np.random.default_rng(seed).permutation(len(kept))]
            found = rank_hits(scores[at], distances[at], at, np.array([0, len(at)]))
            assert at[found].tolist() == expected
    assert rank_hits(*np.zeros((3, 0)), np.array([0])).tolist() == []
    assert rank_hits(*np.zeros((3, 2)), np.array([0, 0, 1, 1, 2])).tolist() == [0, 1]


def test_a_hit_with_the_text_of_the_query_is_first_and_changes_no_other():
    hits = [Hit(i, text, 0.1 * i) for i, text in enumerate(CORPUS[:4])]
    whole = reranker(candidates=10, network=network())
    (plain,) = whole.rerank([CORPUS[8]], [hits])
    (found,) = whole.rerank([CORPUS[8]], [[*hits, Hit(9, CORPUS[8], 3.0)]])
    assert found[0].id == 9
    assert found[1:] == plain
