import csv

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.evaluation.answers import (
    COLUMNS,
    failing,
    known_paraphrases,
    search_results,
    summarize,
    write_failures,
)
from qpr_jax.index.protocol import Hit

QUESTIONS = {
    1: "How do I cook rice?",
    2: "How can I cook rice?",
    3: "How do I cook rice in 2 minutes?",
    4: "Is Rust better than C?",
    5: "Why is Rust better than C?",
    6: "Is C better than Rust?",
    7: 'a "quoted", text\nin two lines',
    8: "a text",
    9: "why \ud800 not?",
}
PAIRS = np.array([[1, 2], [2, 3], [4, 5], [7, 8]])  # the query first
NEAREST = {1: [4, 3, 2], 2: [2, 1], 4: [6, 4, 9, 5], 7: [7, 9]}


def search(queries, k):
    assert k == 21
    nearest = {QUESTIONS[query]: found for query, found in NEAREST.items()}
    return [
        [Hit(i, QUESTIONS[i], place / 10) for place, i in enumerate(nearest[query], 1)]
        for query in queries
    ]


@pytest.fixture
def results():
    return search_results(
        search, QUESTIONS, PAIRS, frozenset({"is", "rust", "better", "than", "c"})
    )


def test_the_file_has_what_fails(results, tmp_path):
    write_failures(tmp_path / "made.csv", results)
    with open(tmp_path / "made.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["query_id"] for row in rows] == ["1", "4", "7"]
    assert list(rows[0]) == [*COLUMNS]
    assert rows[0]["expected"] == QUESTIONS[2]  # shares more words than the right hit at place 2
    assert (rows[0]["right_place"], rows[0]["right_distance"]) == ("2", "0.2")
    assert (rows[0]["expected_kinds"], rows[0]["first_kinds"]) == ("unseen", "names unseen")
    assert rows[1] == {
        **{"query_id": "4", "query": QUESTIONS[4]},
        **{"expected_id": "5", "expected": QUESTIONS[5], "expected_kinds": ""},
        **{"first_id": "6", "first": QUESTIONS[6], "first_distance": "0.1", "first_kinds": "order"},
        **{"right_place": "3", "right_distance": "0.4"},
    }
    assert rows[2]["query"] == QUESTIONS[7]
    assert rows[2]["first"] == "why ? not?"  # a lone surrogate
    assert rows[2]["right_place"] == rows[2]["right_distance"] == ""


def test_kinds_are_counted(results):
    lines = summarize(results).split("\n")
    assert "| all | 4 | 3 (0.750) | 3 |  |" in lines
    assert any(line.startswith("| order | 0 | 0 | 1 |") for line in lines)
    assert any(line.startswith("| unseen | 3 | 2 (0.667) | 2 |") for line in lines)


def test_the_expected_paraphrase_shares_most_words():
    pairs = np.array([[7, 9], [3, 1], [1, 5], [2**62, 7]])  # known are all that pairs link
    assert known_paraphrases(pairs) == {1: [3, 5], 3: [1, 5], 7: [9, 2**62], 2**62: [7, 9]}
    others = {9: "how can i cook", 5: "how can i cook rice", 4: "RICE, how can I cook?", 3: "rice"}
    pairs = np.array([[1, other] for other in others])
    questions = {1: "how do i cook rice", **others}
    (row,) = search_results(lambda *_: [[Hit(9, "", 0.0)]], questions, pairs)
    assert row["expected_id"] == 4


@pytest.mark.parametrize(
    ("paraphrases", "place"), [([21], 20), ([22], None), ([2, 21], 1)], ids=str
)
def test_places_beyond_twenty_do_not_count(paraphrases, place):
    nearest = [[Hit(i, "a", 0.0) for i in [*range(2, 21), 1, 21, 22]]]
    pairs = np.array([[1, other] for other in paraphrases])
    results = search_results(lambda *_: nearest, dict.fromkeys(range(30), "a"), pairs)
    assert results[0]["right_place"] == place
    assert len(failing(results)) == (place != 1)


def test_a_query_without_other_hits_is_refused():
    with pytest.raises(UserError, match="question 1: expected another question"):
        search_results(lambda *_: [[Hit(1, "a", 0.0)]], {1: "a", 2: "b"}, np.array([[1, 2]]))
