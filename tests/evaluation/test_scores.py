"""Scores of ranks, of pairs and of probabilities, by hand and against scikit-learn."""

import time

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
)

from qpr_jax.evaluation.answers import relevance_scores
from qpr_jax.evaluation.retrieval import (
    exact_search,
    overlap,
    rank,
    retrieval_scores,
    roc_auc,
    time_queries,
)
from qpr_jax.evaluation.scores import (
    NO_THRESHOLD,
    best_thresholds,
    classification_scores,
    mean_interval,
    mining_scores,
    rank_scores,
    reliability,
)
from qpr_jax.index.close_pairs import Pairs
from qpr_jax.index.protocol import Hit


def test_the_interval_of_a_mean_is_by_clusters():
    assert mean_interval(np.full(9, 0.25), np.arange(9)).tolist() == [0.25, 0.25]
    rng = np.random.default_rng(0)
    values = (rng.random(400) < 0.5).astype(float)
    low, high = mean_interval(values, np.arange(400))
    assert low < values.mean() < high
    # 1.96 standard errors each way
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(400), rel=0.15)
    # The same values four times say no more than once.
    four = np.tile(values, 4), np.tile(np.arange(400), 4)
    assert mean_interval(*four) == pytest.approx((low, high))
    counts = rng.integers(1, 9, 400)
    repeated = np.repeat(values, counts), np.repeat(np.arange(400), counts)
    assert mean_interval(values, np.arange(400), counts) == pytest.approx(mean_interval(*repeated))


def test_scores_of_ranks_and_their_differences():
    ranks = {
        "test_clusters": np.array([0, 1, 1]),
        "test_pairs": np.array([2, 1, 1]),
        "test_exact": np.array([1, 4, 0], np.uint8),
        "test_index": np.array([1, 20, 2], np.uint8),
    }
    mean, low, high = rank_scores(ranks, "test", "exact", "query")
    np.testing.assert_allclose(mean, [1 / 3, 2 / 3, (1 + 1 / 4) / 3])
    assert (low <= mean).all()
    assert (mean <= high).all()
    np.testing.assert_allclose(
        rank_scores(ranks, "test", "exact", "pair")[0], [1 / 2, 3 / 4, (2 + 1 / 4) / 4]
    )
    found = rank_scores(ranks, "test", "index", "query", minus="exact")
    np.testing.assert_allclose(found[0], [0, 0, (1 / 20 + 1 / 2 - 1 / 4) / 3])


def test_by_hand():
    p, y = np.array([0.1, 0.3, 0.7, 0.9]), np.array([0, 1, 1, 1])
    found = reliability(p, y, bins=2)
    assert found["curve"] == [pytest.approx([0.2, 0.5, 2]), pytest.approx([0.8, 1, 2])]
    assert found["ece"] == pytest.approx((0.3 + 0.2) / 2)
    assert found["brier"] == pytest.approx((0.01 + 0.49 + 0.09 + 0.01) / 4)
    assert (found["base_rate"], found["base_brier"]) == (0.75, 0.1875)


def test_order_does_not_matter_and_a_weight_is_a_count():
    rng = np.random.default_rng(0)
    p = rng.integers(0, 5, 300) / 4
    y = rng.random(300) < p
    order = rng.permutation(300)
    expected = reliability(p, y)
    assert reliability(p[order], y[order])["ece"] == pytest.approx(expected["ece"])
    assert expected["ece"] < 0.06
    weights = rng.integers(1, 3, 300)
    weighted = reliability(p, y, weights)
    repeated = reliability(np.repeat(p, weights), np.repeat(y, weights))
    assert weighted["brier"] == pytest.approx(repeated["brier"])
    assert weighted["ece"] == pytest.approx(repeated["ece"], abs=0.01)
    assert sum(weight for *_, weight in weighted["curve"]) == weights.sum()


LINE = np.array([[0.0], [1], [3], [6], [10], [15]], np.float32)


def test_exact_search_on_a_line():
    search = exact_search(LINE)
    np.testing.assert_array_equal(search(np.array([0, 3, 5]), 3), [[0, 1, 2], [3, 2, 4], [5, 4, 3]])
    np.testing.assert_array_equal(search(np.array([0]), 8), [[0, 1, 2, 3, 4, 5, -1, -1]])


def test_rank_where_the_query_is_not_found_or_not_first():
    hits = np.array([[5, 6, 7, 8], [5, 2, 7, 8], [5, 3, -1, -1]])
    found = rank(lambda rows, k: hits[:, :k], np.array([1, 2, 3]), k=3)
    np.testing.assert_array_equal(found, [[5, 6, 7], [5, 7, 8], [5, -1, -1]])


def test_rank_in_blocks():
    expected, sizes = rank(exact_search(LINE), np.arange(6), k=4), []

    def search(rows, k):
        sizes.append(len(rows))
        return exact_search(LINE)(rows, k)

    found = rank(search, np.tile(np.arange(6), 300), k=4)
    np.testing.assert_array_equal(found, np.tile(expected, (300, 1)))
    assert (len(sizes), sum(sizes)) == (2, 1800)
    assert rank(search, np.zeros(0, int), k=4).shape == (0, 4)


def lists(*rows: list[int]) -> np.ndarray:
    """Rankings of 20 places, the rest -1."""
    return np.array([row + [-1] * (20 - len(row)) for row in rows])


def test_scores_worked_by_hand():
    """What is relevant, and for whom; the metrics are those that `test_beir.py` checks."""
    # Cluster 0: questions 0, 1, 2; cluster 1: 3, 4; question 5 alone.
    clusters = np.array([0, 0, 0, 1, 1, -1], np.int32)
    pairs = np.array([[0, 1], [0, 2], [1, 2], [3, 4]], np.int32)
    # Query 0 finds 1 at 1 and 2 at 3; query 1 finds one of two at 2; query 3 finds nothing.
    # Rows come in any order, and with a query that heads no pair.
    positions = np.array([3, 0, 5, 1])
    rankings = lists([5, 0, 1, 2], [1, 5, 2, 3], [0], [4, 2])
    scores = retrieval_scores(rankings, positions, pairs, clusters)

    by_query = {  # of queries 0, 1, 3
        "hits@1": [1, 0, 0],
        "hits@10": [1, 1, 0],
        "mrr@20": [1, 1 / 2, 0],
        "recall@5": [1, 1 / 2, 0],
        "map@20": [(1 + 2 / 3) / 2, (1 / 2) / 2, 0],
        "ndcg@10": [(1 + 1 / 2) / (1 + 1 / np.log2(3)), (1 / np.log2(3)) / (1 + 1 / np.log2(3)), 0],
    }
    for name, (first, second, third) in by_query.items():
        per_query = (first + second + third) / 3
        per_pair = (2 * first + second + third) / 4  # query 0 heads two pairs
        assert scores["per_query"][name] == pytest.approx(per_query), name
        assert scores["per_pair"][name] == pytest.approx(per_pair), name
    assert all(type(value) is float for value in scores["per_pair"].values())


def test_empty_places_and_lone_questions_are_never_relevant():
    # Position -1 would be the last question, which shares the query's cluster.
    clusters = np.array([0, -1, -1, 0])
    scores = retrieval_scores(lists([1, 2]), np.array([0]), np.array([[0, 3]]), clusters)
    assert scores["per_pair"]["hits@10"] == 0
    lone = retrieval_scores(lists([2]), np.array([1]), np.array([[1, 2]]), clusters)
    assert lone["per_query"]["recall@20"] == 0


def test_twenty_answers_and_hits_with_the_text_of_the_query():
    hits = [Hit(i, f"text {i}", float(i)) for i in range(20)]

    def search(queries, k):
        return [hits for _ in queries]

    scores = relevance_scores(search, {"text 0": {*range(20)}})
    assert (scores["hits@1"], scores["recall@10"]) == (1, 0.5)
    for other_texts, place in ((False, 2), (True, 1)):
        found = relevance_scores(search, {"text 0": {1}}, other_texts=other_texts)
        assert found["mrr@20"] == 1 / place


def test_hits_are_close_from_a_score_on():
    scores = (None, 0.199, 0.2, 1.0)
    assert [Hit(1, "a", 0, score).close for score in scores] == [None, False, True, True]


def test_times_are_in_milliseconds():
    found = time_queries(lambda queries, k: time.sleep(0.002), ["a"] * 3)
    assert 2 <= found["query_ms_p50"] <= found["query_ms_p99"] < 2000


def test_overlap():
    exact = np.array([[1, 2, 3], [4, 5, 6], [7, -1, -1]])
    found = np.array([[3, 2, 1], [4, 9, -1], [7, -1, -1]])
    assert overlap(found, exact, k=3) == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert overlap(found, exact, k=1) == pytest.approx((0 + 1 + 1) / 3)


def test_roc_auc():
    # Of the four (positive, negative) comparisons three are won and one is a tie.
    assert roc_auc(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == pytest.approx(3.5 / 4)
    assert roc_auc(np.array([9.0]), np.array([1.0])) == 0


DISTANCES = np.array([0.1, 0.2, 0.2, 0.4, 0.5, 0.9], np.float32)
DUPLICATES = np.array([True, True, False, True, False, False])


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_best_thresholds_are_the_best_of_all(share):
    rng = np.random.default_rng(0)
    distances = rng.integers(0, 30, 200) / 10
    duplicates = rng.random(200) < share
    best = best_thresholds(distances, duplicates)
    balanced = ("balanced", balanced_accuracy_score)
    for name, score in (("accuracy", accuracy_score), ("f1", f1_score), balanced):
        scores = {
            t: score(duplicates, distances <= t) for t in [NO_THRESHOLD, *np.unique(distances)]
        }
        assert scores[best[name]] == pytest.approx(max(scores.values()), abs=1e-12)


def test_classification_scores_by_hand():
    scores = classification_scores(DISTANCES, DUPLICATES, {"accuracy": 0.1, "f1": 0.45})
    assert scores == {
        "pairs": 6,
        "non_duplicates": 3,
        "accuracy": pytest.approx(4 / 6),
        "majority_accuracy": 0.5,
        "f1": pytest.approx(6 / 7),
        "precision": pytest.approx(3 / 4),
        "recall": 1.0,
        "mcc": pytest.approx((3 * 2 - 1 * 0) / np.sqrt(4 * 3 * 3 * 2)),
        "average_precision": pytest.approx(average_precision_score(DUPLICATES, -DISTANCES)),
        # Of nine pairs of a duplicate and another, seven are in order, and one is level.
        "roc_auc": pytest.approx(7.5 / 9),
    }


CLUSTERS = np.array([0, 0, 0, 1, 1, -1, -1])  # three that mean the same, and two others
FOUND = Pairs(
    np.array([0, 5, 3, 0]), np.array([1, 6, 4, 2]), np.array([0.1, 0.2, 0.3, 0.3], np.float32)
)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 1, 3, 2]])
def test_mining_scores_by_hand(order):
    found = Pairs(*(values[order] for values in FOUND))
    assert mining_scores(found, CLUSTERS) == {
        "true_pairs": 4,
        "found_pairs": 4,
        "average_precision": pytest.approx((1 + 3 / 4 + 3 / 4) / 4),
        "f1": pytest.approx(6 / 8),
        "precision": 0.75,
        "recall": 0.75,
        "threshold": pytest.approx(0.3),
    }


def test_the_average_precision_of_all_pairs_is_that_of_the_field():
    rng = np.random.default_rng(0)
    clusters = rng.integers(-1, 6, 40)
    first, second = np.triu_indices(40, k=1)
    true = (clusters[first] == clusters[second]) & (clusters[first] >= 0)
    distances = (rng.integers(0, 9, len(first)) - 2 * true).astype(np.float32)
    order = np.argsort(distances)
    found = Pairs(first[order], second[order], distances[order])
    expected = average_precision_score(true, -distances)
    assert mining_scores(found, clusters)["average_precision"] == pytest.approx(expected)
