"""Figures of tables that were left out, against values worked by hand."""

import numpy as np
import pytest

from experiments.transfer import first_hits, judge
from experiments.transfer_fit import few_of_groups, join
from experiments.transfer_scores import (
    area_figure,
    balanced_accuracy,
    best_bound,
    called,
    difference,
    mean_figure,
    precisions,
)
from experiments.transfer_tables import in_training, make_table, pairs_table

LABELED = [
    *((f"reset my password {way}", "reset") for way in ("now", "please", "again", "today")),
    *((f"close the account {way}", "close") for way in ("now", "please", "again", "today")),
    ("Where is the office?", "office"),
    ("where is the office", "office"),
]


def test_a_table_has_each_spelling_once_and_queries_that_are_not_indexed():
    table = make_table("desk", LABELED, [("where is the office", "reset my password now")])
    assert len(table.texts) == 9
    assert np.bincount(table.groups).tolist() == [4, 4, 1]
    assert table.contrasts.tolist() == [[0, 8]]
    indexed = {table.texts[row] for row in table.indexed}
    assert indexed
    assert not indexed & {*table.queries}
    found = {int(table.groups[row]) for row in table.indexed}
    assert all((answer == -1) or (answer in found) for answer in table.answers)


def test_groups_of_a_file_are_the_closure_of_its_duplicates(tmp_path):
    path = tmp_path / "some_pairs.csv"
    path.write_text("question1,question2,is_duplicate\na x,b x,1\nb x,c x,1\nd x,a x,0\n")
    table = pairs_table(path)
    assert dict(zip(table.texts, table.groups, strict=True)) == {
        "a x": 0, "b x": 0, "c x": 0, "d x": 1,
    }  # fmt: skip
    assert [[table.texts[row] for row in pair] for pair in table.contrasts] == [["a x", "d x"]]


def test_training_texts_are_found_by_equality_and_by_eight_words_in_a_row():
    words = [f"w{i}" for i in range(10)]
    long = " ".join(words)
    table = make_table("t", [("Lock the door!", 0), (long, 1), ("something else", 2)])
    assert in_training(table, ["lock the DOOR", "else"]) == ["Lock the door!"]
    assert in_training(table, ["x " + " ".join(words[1:9])]) == [long]
    assert in_training(table, [" ".join(words[1:8])]) == []


def test_precisions_count_pairs_of_one_score_together():
    scores, true = np.array([0.9, 0.5, 0.5, 0.1]), np.array([True, False, True, True])
    assert precisions(scores, true) == pytest.approx([1, 2 / 3, 3 / 4])


def test_area_and_bounds():
    area = area_figure(np.array([3.0, 1.0, 1.0, 0.0]), np.array([1, 1, 0, 0], bool), np.arange(4))
    assert area.value == pytest.approx((2 + 1.5) / 4)
    true = np.array([True, True, False, False])
    assert called(np.array([True, False, True, False]), true) == {
        "precision": 0.5, "recall": 0.5, "f1": 0.5,
    }  # fmt: skip
    assert balanced_accuracy(np.array([True, True, True, False]), true) == 0.75
    scores = [np.array([0.9, 0.8, 0.3, 0.1])]
    assert 0.3 < best_bound(scores, [true], "f1") <= 0.8
    assert 0.3 < best_bound(scores, [true], "accuracy") <= 0.8


def test_the_mean_over_tables_weighs_them_equally():
    small = mean_figure(np.ones(2), np.arange(2)), mean_figure(np.zeros(2), np.arange(2))
    large = mean_figure(np.zeros(50), np.arange(50)), mean_figure(np.zeros(50), np.arange(50))
    found = difference([small[0], large[0]], [small[1], large[1]])
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize(("gain", "harmless"), [(0.0, True), (0.5, True), (-0.5, False)])
def test_the_rule_forbids_a_loss_on_one_table(gain, harmless):
    tables = [make_table(name, LABELED) for name in "ab"]
    base = mean_figure(np.full(8, 0.5), np.arange(8))
    other = mean_figure(np.full(8, 0.5 + gain), np.arange(8))
    gains, is_harmless = judge(tables, [base, other], [base, base])
    assert [found.mean for found in gains] == pytest.approx([0, gain, gain / 2])
    assert is_harmless is harmless


def test_first_hits_are_best_first():
    hits, best, close = first_hits(np.array([[0.1, 0.9, 0.5], [0.2, 0.1, 0.0]]), 0.5)
    assert hits.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert best.tolist() == [0.9, 0.2]
    assert close.tolist() == [True, False]


def test_a_fit_weighs_tables_equally_and_few_texts_of_a_group():
    joined, weights = join([np.zeros((30, 2)), np.ones((10, 2))])
    assert weights[joined[:, 0] == 0].sum() == pytest.approx(weights[joined[:, 0] == 1].sum())
    assert weights.mean() == pytest.approx(1)
    groups = np.array([3, 1, 3, 3, 0, 1, 3])
    assert few_of_groups(groups, 2).tolist() == [True, True, True, False, True, True, False]
