import numpy as np
import pytest

from qpr_jax.evaluation.retrieval import (
    exact_search,
    index_recall,
    overlap,
    rank,
    retrieval_scores,
    roc_auc,
)

LINE = np.array([[0.0], [1], [3], [6], [10], [15]], np.float32)


def test_exact_search_on_a_line():
    search = exact_search(LINE)
    np.testing.assert_array_equal(search(np.array([0, 3, 5]), 3), [[0, 1, 2], [3, 2, 4], [5, 4, 3]])
    np.testing.assert_array_equal(search(np.array([0]), 8), [[0, 1, 2, 3, 4, 5, -1, -1]])


def test_rank_where_the_query_is_not_found_or_not_first():
    def search(rows, k):
        assert k == 4
        return np.array([[5, 6, 7, 8], [5, 2, 7, 8], [5, 3, -1, -1]])

    found = rank(search, np.array([1, 2, 3]), k=3)
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
        "recall@1": [1 / 2, 0, 0],
        "recall@5": [1, 1 / 2, 0],
        "precision@1": [1, 0, 0],
        "precision@3": [2 / 3, 1 / 3, 0],
        "map@1": [1 / 2, 0, 0],
        "map@20": [(1 + 2 / 3) / 2, (1 / 2) / 2, 0],
        "ndcg@1": [1, 0, 0],
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


def test_overlap():
    exact = np.array([[1, 2, 3], [4, 5, 6], [7, -1, -1]])
    found = np.array([[3, 2, 1], [4, 9, -1], [7, -1, -1]])
    assert overlap(found, exact, k=3) == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert overlap(found, exact, k=1) == pytest.approx((0 + 1 + 1) / 3)


def test_the_recall_of_an_index_is_by_distance():
    vectors = np.array([[0], [1], [1], [1], [3]], np.float32)
    queries, exact = np.array([0, 4]), np.array([[1, 2, 3, 4], [1, 2, 3, 0]])
    equal = np.array([[3, 1, 2, 4], [2, 3, -1, -1]])
    assert index_recall(equal, exact, queries, vectors, k=2) == 1
    assert index_recall(equal, exact, queries, vectors, k=3) == pytest.approx((1 + 2 / 3) / 2)
    far = np.array([[4, 1, 2, 3], [0, 1, 2, 3]])
    assert index_recall(far, exact, queries, vectors, k=1) == 0
    none = np.full((2, 4), -1)
    assert index_recall(none, none, queries, vectors) == 0


def test_roc_auc():
    # Of the four (positive, negative) comparisons three are won and one is a tie.
    assert roc_auc(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == pytest.approx(3.5 / 4)
    assert roc_auc(np.array([9.0]), np.array([1.0])) == 0
