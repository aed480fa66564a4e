"""Hard negatives by rules, on questions that are points of a line."""

from collections import Counter

import numpy as np

from qpr_jax.data.splits import group_questions
from qpr_jax.index.protocol import Hit
from qpr_jax.training.negatives import Rules, find_negatives, query_groups

# Text -> where it lies. "a" and "b" are clusters; "a one" and "A one!" are one text.
PLACES = {"a one": 0.0, "a two": 3.0, "b one": 4.0, "c": 1.0, "A one!": 0.0, "d": 2.0, "b two": 9.0}
QUESTIONS = [*PLACES]
CLUSTERS = np.array([0, 0, 1, -1, -1, -1, 1])
GROUPS = group_questions(QUESTIONS, CLUSTERS)


def encode(texts):
    return np.array([[PLACES[text]] for text in texts], np.float32)


def find(texts, k):
    """The nearest of all, and of a question that no label knows."""
    vectors = encode(texts)
    places = PLACES | {"e": 0.5}
    hits = []
    for (at,) in vectors:
        near = [Hit(i, text, float((at - x) ** 2)) for i, (text, x) in enumerate(places.items())]
        hits.append(sorted(near, key=lambda hit: (hit.distance, hit.id))[:k])
    return vectors, hits


def mine(rules, find=find, score=None):
    """The negatives of each question as (text, rank), and the counts."""
    counts = Counter()
    queries = query_groups(QUESTIONS, GROUPS)
    found: dict[str, list[tuple[str, int]]] = {}
    for some in find_negatives(QUESTIONS, GROUPS, queries, rules, find, counts, score):
        for negative in some:
            mined = found.setdefault(QUESTIONS[negative.query], [])
            mined.append((negative.hit.question, negative.rank))
    return found, counts


def test_queries_are_questions_with_a_paraphrase_in_other_words():
    groups = query_groups(QUESTIONS, GROUPS)
    assert [rows.tolist() for rows in groups] == [[2, 6], [0, 1, 4]]
    assert query_groups(["x", "X"], np.array([0, 0])) == []
    assert query_groups([], np.zeros(0, int)) == []


def test_ranks_count_hits_that_are_no_known_paraphrase():
    found, counts = mine(Rules(to_rank=3, count=9))
    assert found["a one"] == [("e", 1), ("c", 2), ("d", 3)]
    assert found["a two"] == [("b one", 1), ("d", 2), ("c", 3)]
    assert set(found) == {"a one", "a two", "A one!", "b one", "b two"}
    assert counts["queries"] == counts["short"] == 5
    assert counts["negatives"] == 15
    found, counts = mine(Rules(from_rank=2, to_rank=3, count=1))
    assert found["a one"] == [("c", 2)]
    assert (counts["rank"], counts["short"]) == (5, 0)


def test_a_margin_is_to_the_farthest_known_paraphrase():
    """That of "a one", 3 away, has the squared distance 9; "b one" has 16, "b two" 81."""
    for margins, negatives in (
        ({"relative_margin": 0.0}, ["b one", "b two"]),
        ({"relative_margin": 0.8}, ["b two"]),
        ({"relative_margin": 12.0}, []),
    ):
        found, counts = mine(Rules(count=9, **margins))
        assert [text for text, _ in found.get("a one", [])] == negatives
        assert counts["margin"] > 0


def test_a_judge_is_asked_until_there_are_enough():
    asked = []

    def score(pairs):
        asked.extend(pairs)
        return np.array([0.9 if hit in "ec" else 0.5 for _, hit in pairs])

    found, counts = mine(Rules(count=1), score=score)
    assert found["a one"] == [("d", 3)]
    assert [hit for query, hit in asked if query == "a one"] == ["e", "c", "d"]
    assert [hit for query, hit in asked if query == "a two"] == ["b one"]
    assert counts["score"] == 4
    nothing, counts = mine(Rules(count=1), score=lambda pairs: np.ones(len(pairs)))
    assert (nothing, counts["short"]) == ({}, 5)


def test_hits_of_a_high_score_are_dropped():
    def scored(texts, k):
        vectors, hits = find(texts, k)
        scores = {"e": 0.9, "c": 0.2, "d": 0.51}
        return vectors, [
            [h._replace(score=scores.get(h.question, 0.1)) for h in found] for found in hits
        ]

    found, counts = mine(Rules(count=9), scored)
    assert found["a one"] == [("c", 2), ("b one", 4), ("b two", 5)]
    assert counts["score"] == 2 * 5


def test_a_random_choice_is_a_function_of_the_seed():
    draws = {seed: mine(Rules(count=2, seed=seed))[0] for seed in range(8)}
    assert mine(Rules(count=2, seed=3))[0] == draws[3]
    assert len({str(draw) for draw in draws.values()}) > 1
    for draw in draws.values():
        assert all(ranks == sorted(ranks) for ranks in ([r for _, r in n] for n in draw.values()))
