import itertools
import random
from collections import Counter, defaultdict

import pytest

from qpr_jax.data.splits import SPLITS
from qpr_jax.distant.logs import UNDECIDED, LogRow, Question, distinct_questions
from qpr_jax.distant.method import (
    Cluster,
    Method,
    draw,
    find_clusters,
    pairwise_coherence,
    paper_coherence,
    remove_overlap,
    sample_pairs,
    split_clusters,
)
from qpr_jax.errors import UserError

# Three questions; the union has five words.
WORDS = [["play", "some", "jazz"], ["play", "jazz"], ["start", "music"]]


def test_the_papers_coherence_by_hand():
    assert paper_coherence(WORDS) == pytest.approx((3 / 5 + 2 / 5 + 2 / 5) / 3)
    assert paper_coherence([["a"], ["b"], ["c"], ["d"]]) == pytest.approx(1 / 4)
    assert paper_coherence([["a", "b"]] * 3) == 1


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
    equal = defaultdict(lambda: 1.0)
    assert pairwise_coherence([["a"], ["b"]], equal) == 0
    assert pairwise_coherence([["a", "b"]] * 7, equal) == 1


def test_each_question_stands_once_with_the_answer_it_got_most_often():
    rows = [
        LogRow("who sang it", "abba", "who sang it"),
        LogRow("how tall", "2 m", "how tall?"),
        LogRow("who sang it", "abba", "Who sang it?"),
        LogRow("how tall", "3 m", "How tall?"),
        LogRow("who sang it", "queen", "who  sang it"),
    ]
    assert [*distinct_questions(rows)] == [
        Question("Who sang it?", "abba", 2),
        Question("How tall?", UNDECIDED, 2),
    ]


def test_clusters_have_two_questions_or_more_sorted_by_answer():
    texts = {"a b": "y", "a b c": "y", "b": "x", "a": "x", "alone": "z", "none": UNDECIDED}
    questions = [Question(text, answer, 1) for text, answer in texts.items()]
    found = find_clusters(questions, Method("paper"))
    assert found == [Cluster("x", ["a", "b"], 1 / 2), Cluster("y", ["a b", "a b c"], 5 / 6)]


def test_a_tenth_each_is_held_out_by_draws_that_are_the_same_everywhere():
    clusters = [Cluster(f"answer {i}", [], 1.0) for i in range(1000)]
    split_of = split_clusters(clusters, Method())
    assert Counter(split_of.values()) == {"train": 800, "validation": 100, "test": 100}
    assert split_of == split_clusters(clusters[::-1], Method())
    assert split_of != split_clusters(clusters, Method(seed=1))
    assert {*split_clusters(clusters[:3], Method()).values()} == {*SPLITS}
    with pytest.raises(UserError, match=r"expected 3 clusters or more.* got 2"):
        split_clusters(clusters[:2], Method())
    assert draw("split", 0, "abba") == 9203755730560173837
    assert draw("split", 1, "abba") != draw("split", 0, "abba") != draw("sample", 0, "abba")


def test_held_out_questions_with_the_words_of_one_that_trains_are_removed():
    clusters = [
        Cluster("train", ["how to cook rice", "cook rice"], 1.0),
        Cluster("validation", ["Cook rice how to?", "boil rice", "rice, in water"], 1.0),
        Cluster("test", ["in water rice", "rice cook"], 1.0),
    ]
    found = remove_overlap(clusters, {name: name for name in SPLITS})
    # Validation and test may overlap: neither trains.
    assert [cluster.questions for cluster in found] == [
        ["how to cook rice", "cook rice"],
        ["boil rice", "rice, in water"],
        ["in water rice"],
    ]


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
