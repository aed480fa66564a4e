import itertools
import random

import numpy as np
import pytest

from qpr_jax.data.splits import TEST, TRAIN, VALIDATION
from qpr_jax.distant.method import (
    UNDECIDED,
    Bounds,
    Cluster,
    Method,
    distinct_questions,
    draw,
    find_overlap,
    finish_clusters,
    group_clusters,
    log_row,
    overlap_keys,
    pairwise_coherence,
    paper_coherence,
    sample_pairs,
    split_bounds,
)
from qpr_jax.errors import UserError

# Three questions; the union has five words.
WORDS = [["play", "some", "jazz"], ["play", "jazz"], ["start", "music"]]


def test_the_papers_coherence_by_hand():
    assert paper_coherence(WORDS) == pytest.approx((3 / 5 + 2 / 5 + 2 / 5) / 3)
    assert paper_coherence([["a"], ["b"], ["c"], ["d"]]) == pytest.approx(1 / 4)
    assert paper_coherence([["a", "b"]] * 3) == 1


def test_the_pairwise_coherence_by_hand():
    weights = {"play": 1.0, "jazz": 2.0, "some": 3.0, "start": 3.0, "music": 3.0}
    whole = 2 * 1 + 2 * 2 + 3 + 3 + 3
    assert pairwise_coherence(WORDS, weights) == pytest.approx((2 * 1 + 2 * 2) / (2 * whole))
    # A word without a weight of its own weighs as much as the last.
    assert pairwise_coherence([["x"], ["x", "y"]], {"z": 5.0}) == pytest.approx(2 / 3)
    assert pairwise_coherence([["a"], ["b"]], weights) == 0
    assert pairwise_coherence([["a", "b"]] * 7, {}) == 1


def test_the_pairwise_coherence_is_what_it_says():
    # Of all ordered pairs of questions: the share of the first one's weight that the other has.
    draws = random.Random(1)
    weights = {f"w{i}": draws.random() for i in range(30)}
    words = [draws.sample(sorted(weights), draws.randint(1, 8)) for _ in range(12)]
    shared = whole = 0.0
    for one, other in itertools.permutations(words, 2):
        shared += sum(weights[word] for word in one if word in other)
        whole += sum(weights[word] for word in one)
    assert pairwise_coherence(words, weights) == pytest.approx(shared / whole)


def test_the_size_of_a_cluster_moves_the_papers_coherence_and_not_the_pairwise_one():
    draws = random.Random(2)
    words = [draws.sample(range(40), 6) for _ in range(800)]
    part = [[f"w{i}" for i in of_one] for of_one in words]
    assert paper_coherence(part) < 0.16 < 0.5 < paper_coherence(part[:2])
    means = [
        np.mean([pairwise_coherence(draws.sample(part, n), {}) for _ in range(200)])
        for n in (2, 10, 100)
    ]
    np.testing.assert_allclose(means, pairwise_coherence(part, {}), rtol=0.15)


def rows(*triples):
    return sorted(log_row(question, answer) for question, answer in triples)


def test_each_question_stands_once_with_the_answer_it_got_most_often():
    found = distinct_questions(
        rows(
            ("Who sang it?", "Abba"),
            ("who sang it", "abba."),
            ("who  sang it", "queen"),
            ("How tall?", "2 m"),
            ("how tall?", "3 m"),
        )
    )
    assert [tuple(question) for question in found] == [
        ("How tall?", UNDECIDED, 2, 2),
        ("Who sang it?", "abba", 3, 2),
    ]


def test_clusters_below_the_least_coherence_are_removed_and_single_questions_are_none():
    questions = sorted([("x", "a b"), ("x", "a b c"), ("y", "a"), ("y", "b"), ("z", "alone")])
    found = list(group_clusters(questions, Method("paper", least=0.8), {}))
    assert [(c.answer, c.size, c.kept, c.questions) for c in found] == [
        ("x", 2, True, ["a b", "a b c"]),
        ("y", 2, False, []),
    ]
    assert found[1].shown == ["a", "b"]


def test_a_tenth_each_is_held_out():
    draws = np.array([draw("split", 0, f"answer {i}") for i in range(1000)])
    bounds = split_bounds(draws)
    counts = np.bincount([bounds.split_of(int(value)) for value in draws], minlength=3)
    assert (counts[TRAIN], counts[VALIDATION], counts[TEST]) == (800, 100, 100)
    with pytest.raises(UserError, match=r"expected 3 clusters or more.* got 2"):
        split_bounds(draws[:2])
    few = split_bounds(draws[:3])
    assert {few.split_of(int(value)) for value in draws[:3]} == {TRAIN, VALIDATION, TEST}


def test_draws_are_the_same_everywhere():
    assert draw("split", 0, "abba") == 9203755730560173837
    assert draw("split", 1, "abba") != draw("split", 0, "abba") != draw("sample", 0, "abba")


def cluster(answer, split_draw, *questions):
    return Cluster(answer, len(questions), 1.0, True, split_draw, 0, [], list(questions))


def test_held_out_questions_with_the_words_of_one_that_trains_are_dropped():
    bounds = Bounds(validation=10, test=20)
    made = [
        cluster("train", 30, "how to cook rice", "cook rice"),
        cluster("validation", 5, "Cook rice how to?", "boil rice", "rice, in water"),
        cluster("test", 15, "in water rice", "rice cook"),
    ]
    gone = list(find_overlap(sorted(row for c in made for row in overlap_keys(c, bounds))))
    # Validation and test may overlap: neither trains.
    assert sorted(gone) == [("test", "rice cook"), ("validation", "Cook rice how to?")]
    dropped = [(made[1], ["Cook rice how to?"]), (made[2], ["rice cook"])]
    (left,) = finish_clusters(dropped, bounds, Method())  # the last has one question left
    assert (left.split, left.questions) == ("validation", 2)


def test_pairs_are_all_or_a_draw():
    questions = [f"question {i}" for i in range(20)]
    every = [frozenset(pair) for pair in sample_pairs(questions, "a", Method(pairs=190))]
    assert {*every} == {*map(frozenset, itertools.combinations(questions, 2))}
    assert len(every) == 190
    some = list(sample_pairs(questions, "a", Method(pairs=50)))
    assert len({*map(frozenset, some)}) == 50
    assert some == list(sample_pairs(questions, "a", Method(pairs=50)))
    assert some != list(sample_pairs(questions, "a", Method(pairs=50, seed=1)))
    ways = [questions.index(a) < questions.index(b) for a, b in some]
    assert {*ways} == {True, False}
