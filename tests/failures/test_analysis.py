import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.failures.analysis import (
    Answer,
    analyze,
    closest_paraphrase,
    compare_runs,
    examples_by_mistake,
    examples_by_query,
    find_answers,
    known_paraphrases,
    mistake_counts,
    query_counts,
    questions_of_pairs,
    require_same_questions,
    sample_cases,
)
from qpr_jax.index.base import Hit
from qpr_jax.index.question_index import QuestionIndex, build_index

QUESTIONS = {1: "How do I cook rice?", 4: "Is Rust better than C?", 6: "Is C better than Rust?"}


def test_known_are_all_that_pairs_link():
    pairs = np.array([[7, 9], [3, 1], [1, 5], [2**62, 7]])
    assert known_paraphrases(pairs) == {
        1: [3, 5],
        3: [1, 5],
        7: [9, 2**62],
        2**62: [7, 9],
    }


def test_the_closest_paraphrase_shares_most_words():
    others = {9: "how can i cook", 5: "how can i cook rice", 4: "RICE, how can I cook?", 3: "rice"}
    assert closest_paraphrase("how do i cook rice", others) == 4


def test_answers_leave_the_query_out(analysis):
    cases = {case.id: case for case in analysis.cases}
    assert [*cases] == [1, 2, 4, 7]
    first, second = cases[1].answers
    assert first == Answer(Hit(2, "How can I cook rice?", 0.2), first.first, 1)
    assert not first.failed
    assert second.first.id == 4
    assert (second.place, second.paraphrase.id, second.failed) == (2, 3, True)
    assert (cases[1].paraphrase_id, cases[1].paraphrase) == (2, "How can I cook rice?")
    first, second = cases[4].answers
    assert (first.first.id, first.place, first.paraphrase.id) == (6, 3, 5)
    assert cases[4].mistakes == (("order",), None)
    assert cases[7].answers[1] == Answer(cases[7].answers[1].first, None, 0)
    assert "negation" in cases[7].mistakes[1]


def test_places_beyond_twenty_do_not_count():
    nearest = [[Hit(i, "", 0.0) for i in [*range(2, 21), 1, 21, 22]]]
    for known, place in (([21], 20), ([22], 0), ([2, 21], 1)):
        (answer,) = find_answers(lambda queries, k: nearest, {1: "a"}, {1: known})
        assert answer.place == place
        assert (answer.paraphrase is None) == (place == 0)


def test_queries_are_searched_many_at_a_time():
    sizes = []

    def search(queries, k):
        sizes.append(len(queries))
        return [[Hit(10**6, "", 0.0)] for _ in queries]

    queries = {i: str(i) for i in range(1030)}
    assert len(find_answers(search, queries, dict.fromkeys(queries, (10**6,)))) == 1030
    assert sizes == [1024, 6]


def test_an_index_that_finds_nothing_is_told():
    with pytest.raises(UserError, match="question 1: expected another question among"):
        find_answers(lambda queries, k: [[Hit(1, "a", 0.0)]], {1: "a"}, {1: [2]})


def test_the_table_of_queries(analysis):
    rows = {row.group: (row.queries, row.failing) for row in query_counts(analysis)}
    assert rows.pop("all") == (4, (1, 2))
    assert rows.pop("none") == (3, (1, 1))  # 1 and 2 with their other, 4 and 5
    assert rows.pop("order") == (1, (0, 1))  # 7 and 8
    assert {name for name, row in rows.items() if row != (0, (0, 0))} == set()


def test_the_table_of_mistakes(analysis):
    rows = mistake_counts(analysis)
    assert rows["all"] == (1, 2)
    assert rows["order"] == (1, 0)  # 4 and 6
    assert rows["names"] == (0, 1)  # 1 and 4
    assert rows["negation"] == (0, 1)  # 7 and 9
    assert rows["none"] == (0, 0)


def test_unseen_words_are_of_the_query(one_run, analysis):
    rows = {row.group: row.queries for row in query_counts(one_run)}
    assert rows["unseen"] == 1  # 7
    assert "unseen" not in mistake_counts(analysis)


def test_examples_are_of_the_first_run(analysis, one_run):
    def ids(found):
        return {name: [case.id for case in cases] for name, cases in found.items() if cases}

    for each in (analysis, one_run):
        assert ids(examples_by_query(each)) == {"none": [4]}
        assert ids(examples_by_mistake(each)) == {"order": [4]}
    assert ids(compare_runs(analysis)) == {"Only good fails": [4], "Only bad <b> fails": [1, 7]}


def test_examples_are_drawn_alike_each_time(analysis):
    cases = [*analysis.cases] * 25
    some = sample_cases(cases, 10)
    assert len(some) == 10
    assert some == sample_cases(cases, 10)
    assert some != cases[:10]
    assert sample_cases(cases, 1000) == cases
    assert sample_cases([], 10) == []


def built(questions) -> QuestionIndex:
    def encode(texts):
        return np.array([[len(text), text.count("a")] for text in texts], np.float32)

    return build_index(encode, [*questions.values()], [*questions], encoder="", log=len)


def test_the_texts_of_pairs_stand_in_the_index():
    index = built(QUESTIONS)
    assert questions_of_pairs(index, np.array([[6, 1]]), "f") == {i: QUESTIONS[i] for i in (1, 6)}
    with pytest.raises(UserError, match=r"^test.tsv: question 5 is not in the index; "):
        questions_of_pairs(index, np.array([[6, 5]]), "test.tsv")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({1: "a"}, "other: expected the same 3 questions, got 1; index the same"),
        (QUESTIONS | {4: "a"}, "other: expected the same questions, got 'a' for id 4; index"),
        ({1: QUESTIONS[1], 4: QUESTIONS[4], 5: "a"}, "got none for id 6; index"),
    ],
)
def test_indexes_of_other_questions_are_refused(other, said):
    index = built(QUESTIONS)
    require_same_questions(index, built(dict(reversed(QUESTIONS.items()))), "other")
    with pytest.raises(UserError, match="expected the same") as error:
        require_same_questions(index, built(other), "other")
    assert said in str(error.value)


def test_a_run_with_no_failing_query():
    found = [[Hit(2, "b", 0.1)]]
    analysis = analyze({"run": lambda queries, k: found}, {1: "a", 2: "b"}, np.array([[1, 2]]))
    assert mistake_counts(analysis)["all"] == (0,)
