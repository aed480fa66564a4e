import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.failures.analysis import (
    Answer,
    analyze,
    known_paraphrases,
    questions_of_pairs,
    require_same_questions,
)
from qpr_jax.failures.page import sample_cases
from qpr_jax.index.base import Hit, Question

QUESTIONS = {1: "How do I cook rice?", 4: "Is Rust better than C?", 6: "Is C better than Rust?"}


class Table:
    """The part of a store that is read here."""

    def __init__(self, questions):
        self.by_id = {i: Question(i, text) for i, text in questions.items()}

    def __len__(self):
        return len(self.by_id)

    def get(self, ids):
        return [self.by_id.get(i) for i in ids]

    def questions(self):
        return iter(self.by_id.values())


def test_known_are_all_that_pairs_link():
    pairs = np.array([[7, 9], [3, 1], [1, 5], [2**62, 7]])
    assert known_paraphrases(pairs) == {1: [3, 5], 3: [1, 5], 7: [9, 2**62], 2**62: [7, 9]}


def test_the_closest_paraphrase_shares_most_words():
    others = {9: "how can i cook", 5: "how can i cook rice", 4: "RICE, how can I cook?", 3: "rice"}
    pairs = np.array([[1, other] for other in others])
    search = {"run": lambda queries, k: [[Hit(9, "", 0.0)]]}
    analysis = analyze(search, {1: "how do i cook rice", **others}, pairs)
    assert analysis.cases[0].paraphrase_id == 4


def test_answers_leave_the_query_out(analysis):
    cases = {case.id: case for case in analysis.cases}
    assert [*cases] == [1, 2, 4, 7]
    first, second = cases[1].answers
    assert first == Answer(Hit(2, "How can I cook rice?", 0.2), first.first, 1, None)
    assert not first.failed
    assert second.first.id == 4
    assert (second.place, second.paraphrase.id, second.failed) == (2, 3, True)
    assert (cases[1].paraphrase_id, cases[1].paraphrase) == (2, "How can I cook rice?")
    first, second = cases[4].answers
    assert (first.first.id, first.place, first.paraphrase.id) == (6, 3, 5)
    assert (first.mistake, second.mistake) == (("order",), None)
    last = cases[7].answers[1]
    assert (last.paraphrase, last.place) == (None, 0)
    assert "negation" in last.mistake


@pytest.mark.parametrize(("known", "place"), [([21], 20), ([22], 0), ([2, 21], 1)])
def test_places_beyond_twenty_do_not_count(known, place):
    nearest = [[Hit(i, "a", 0.0) for i in [*range(2, 21), 1, 21, 22]]]
    pairs = np.array([[1, other] for other in known])
    analysis = analyze({"run": lambda queries, k: nearest}, dict.fromkeys(range(30), "a"), pairs)
    assert analysis.cases[0].answers[0].place == place


def test_examples_are_drawn_alike_each_time(analysis):
    cases = [*analysis.cases] * 25
    some = sample_cases(cases, 10)
    assert len(some) == 10
    assert some == sample_cases(cases, 10)
    assert some != cases[:10]
    assert sample_cases(cases, 1000) == cases
    assert sample_cases([], 10) == []


def test_the_texts_of_pairs_are_those_of_the_index():
    store = Table(QUESTIONS)
    assert questions_of_pairs(store, np.array([[6, 1]]), "f") == {i: QUESTIONS[i] for i in (1, 6)}
    with pytest.raises(UserError, match=r"^test.tsv: question 5 is not in the index; "):
        questions_of_pairs(store, np.array([[6, 5]]), "test.tsv")


@pytest.mark.parametrize(
    ("other", "got"),
    [
        ({1: "a"}, "got 1"),
        (QUESTIONS | {4: "a"}, "got 'a' for id 4"),
        ({1: QUESTIONS[1], 4: QUESTIONS[4], 5: "a"}, "got none for id 6"),
    ],
)
def test_indexes_of_other_questions_are_refused(other, got):
    store = Table(QUESTIONS)
    require_same_questions(store, Table(dict(reversed(QUESTIONS.items()))), "other")
    with pytest.raises(UserError, match=f"^other: expected the same .*{got}"):
        require_same_questions(store, Table(other), "other")
