"""Labels in a file: nothing is lost, nothing is counted twice, a second start goes on."""

import json

import numpy as np
import pytest

from qpr_jax.data.question_pairs import read_question_pairs
from qpr_jax.duplicates.output import pair_key
from qpr_jax.duplicates.review import (
    describe_review,
    open_review,
    read_found_pairs,
    sweep_labels,
)
from qpr_jax.duplicates.sampling import threshold_of
from tests.refused import check_refused
from tests.tables import read_table, write_table

EVIL = "<img src=x onerror=\"document.title='run'\"> <b>rice</b>"


def pair_rows(count=60, seed=0):
    scores = np.random.default_rng(seed).beta(2, 1, count)
    for i, score in enumerate(scores.tolist()):
        yield {
            "id1": f"<i>{i}",
            "id2": str(i),
            "score": score,
            "distance": 1 / score,
            "question1": f"How to cook {EVIL} {i} in 2015?",
            "question2": f'How to "cook", {EVIL} {i}\nin 2016?',
        }


def write_found(path, rows=None):
    first, *others = rows or pair_rows()
    return write_table(path, [*first], [row.values() for row in (first, *others)])


@pytest.fixture
def pairs(tmp_path):
    return write_found(tmp_path / "pairs.csv")


def judge_all(review, label=lambda pair: pair.score > 0.5):
    while review.current is not None:
        assert review.judge(review.current, bool(label(review.found.pairs[review.current])))


def test_labels_are_on_disk_at_once_and_a_second_start_goes_on(pairs, tmp_path):
    path, shown = tmp_path / "v" / "labels.csv", []
    for _ in range(3):  # starts
        with open_review(pairs, path, precision=0.8) as review:
            assert len(review.history) == len(shown)
            for _ in range(4):
                shown.append(review.current)
                assert review.judge(review.current, len(shown) % 2 == 0)
                labeled = read_question_pairs(path)
                assert labeled.is_duplicate.tolist() == [i % 2 == 1 for i in range(len(shown))]
    assert len({*shown}) == 12
    rows = read_table(path)
    expected = "id1 id2 question1 question2 is_duplicate score weight"
    assert " ".join(rows[0]) == expected
    assert [pair_key(row["id1"], row["id2"]) for row in rows] == shown
    assert rows[0]["question2"] == f'How to "cook", {EVIL} {rows[0]["id2"]}\nin 2016?'


@pytest.mark.parametrize("option", ["threshold", "max_distance"])
def test_weights_count_all_pairs_of_strata_with_a_label(tmp_path, option):
    """Distances serve where there is no score."""
    lacks = {} if option == "threshold" else {"score": ""}
    pairs = write_found(tmp_path / "pairs.csv", ({**row, **lacks} for row in pair_rows()))
    with open_review(pairs, tmp_path / "v.csv", precision=0.8) as review:
        judge_all(review, lambda pair: pair.distance < 2)
        rows = read_table(tmp_path / "v.csv")
        assert sum(float(row["weight"]) for row in rows) == pytest.approx(60)
        described, found = describe_review(review), review.estimate()
    assert described["pair"] is None
    assert described["estimate"]["option"] == review.found.option == option
    distances = np.array([row["distance"] for row in pair_rows()])
    value = threshold_of(review.found.values, found)
    accepted = distances[1 / distances >= value if option == "threshold" else distances <= value]
    assert len(repr(value)) < 9
    assert len(accepted) == found.pairs == described["estimate"]["pairs"]
    assert found.precision == pytest.approx((accepted < 2).mean(), abs=0.06)


def test_labels_say_which_thresholds_are_right(pairs, tmp_path):
    """Of found pairs as well as of first hits; thresholds without a label are left out."""
    scores = np.array([row["score"] for row in pair_rows()])
    for first_hits in (False, True):
        info = {"files": ["pairs.csv"], "threshold": None if first_hits else 0.4}
        (tmp_path / "info.json").write_text(json.dumps(info | {"first_hits": first_hits}))
        path = tmp_path / f"v{first_hits}.csv"
        with open_review(pairs, path, precision=0.8) as review:
            assert review.sweep() == []
            judge_all(review, lambda pair: pair.score > 0.6)
            swept = review.sweep()
            assert [row.threshold for row in swept] == (
                [0.05, 0.1, 0.2, 0.3] if first_hits else [0.4]
            ) + [*(0.5, 0.7, 0.9)]
            for row in swept:
                accepted = scores[scores >= row.threshold]
                assert row.pairs == len(accepted)
                assert row.precision == pytest.approx((accepted > 0.6).mean(), abs=0.06)
                assert row.low <= row.precision <= row.high
            assert [row.pairs for row in sweep_labels(pairs, path)] == [row.pairs for row in swept]
            few = {key: True for key in review.history if review.found.pairs[key].score > 0.9}
            review.history = few
            assert [row.threshold for row in review.sweep()] == [0.9]


def test_labels_need_no_ids(pairs, tmp_path):
    """Texts stand in any order; what `qpr calibrate` reads is enough."""
    path, (first, second, *_) = tmp_path / "v.csv", pair_rows()
    rows = [(first["question2"], first["question1"], "yes"), (second["question1"], "x", 0)]
    write_table(path, ["question1", "question2", "is_duplicate"], rows[:1])
    with open_review(pairs, path, precision=0.8) as review:
        assert review.history == {pair_key(first["id1"], first["id2"]): True}
        review.judge(review.current, False)
    assert next(row["id2"] for row in read_table(path)) == first["id2"]
    assert sweep_labels(pairs, path)[0].labels == 2
    write_table(path, ["question1", "question2", "is_duplicate"], rows[1:])
    assert sweep_labels(pairs, path) == []

    def read(text):
        path.write_text(text)
        sweep_labels(pairs, path)

    check_refused(
        read,
        ("id1,id2,label\n1,2,1\n", "line 2: expected `question1`, got"),
        ("question1,question2,is_duplicate\na,b,maybe\n", "expected `is_duplicate` 0 or 1"),
    )


def test_undo_and_skip(pairs, tmp_path):
    path = tmp_path / "v.csv"
    with open_review(pairs, path, precision=0.8) as review:
        assert not review.undo()
        first = review.current
        assert review.judge(first, None)
        assert not path.exists()  # a skip is no label
        second = review.current
        assert second != first
        assert review.judge(second, True)
        assert not review.judge(second, True)  # a key that was pressed twice
        assert review.undo()
        assert review.current == second
        assert path.read_text().count("\n") == 1
        assert review.undo()
        assert review.current == first
        assert review.estimate() is None


def test_blanks_in_ids_make_no_two_pairs_one():
    assert pair_key("a b", "c") != pair_key("a", "b c") != pair_key("b c", "a")


def test_two_tables_may_have_the_same_ids(tmp_path):
    """With `--against`, rows 1 and 2 are another pair than rows 2 and 1."""
    rows = [*pair_rows(20)]
    for i, row in enumerate(rows):
        row |= {"id1": f"{i // 2}" if i % 2 else "x", "id2": "x" if i % 2 else f"{i // 2}"}
    path = write_found(tmp_path / "pairs.csv", rows)
    other, asked = write_found(tmp_path / "other.jsonl", rows[::-1]), []
    with open(path, "a") as file:
        file.write("y,z,1.0,0.0,rice,Rice\n")  # copies are not asked
    for file in (other, path):  # the order of rows does not matter
        (tmp_path / "v.csv").unlink(missing_ok=True)
        with open_review(file, tmp_path / "v.csv", precision=0.8) as review:
            judge_all(review)
            asked.append([*review.history])
    assert asked[0] == asked[1]
    texts = {(row["question1"], row["question2"]) for row in read_table(tmp_path / "v.csv")}
    assert texts == {(row["question1"], row["question2"]) for row in rows}


def test_other_reviews_and_labels_of_other_pairs_are_refused(pairs, tmp_path):
    def start(path):
        with open_review(path, tmp_path / "v.csv", precision=0.8) as review:
            review.judge(review.current, True)

    with open_review(pairs, tmp_path / "v.csv", precision=0.8):
        check_refused(start, (pairs, "another review is writing this file"))
    start(pairs)
    other = write_found(tmp_path / "other.csv", pair_rows(seed=1))
    check_refused(start, (other, "a label on a pair that .* lacks or scores otherwise"))


def test_files_that_are_no_pairs(tmp_path):
    first, *rest = pair_rows(5)
    header = "id1,id2,score,distance,question1,question2\n"
    path = tmp_path / "pairs.csv"

    def read(change):
        if isinstance(change, str):
            path.write_text(change)
        else:
            write_found(path, [first | change, *rest])
        read_found_pairs(str(path))

    check_refused(
        read,
        ({"score": "1.5"}, "line 2: expected ids, questions, a score from 0 to 1"),
        ({"distance": "-1"}, "line 2: expected"),
        ({"score": ""}, "expected a score of every pair, or a distance"),
        ({"id1": "<i>1", "id2": "1"}, "expected each pair once, got '<i>1' and '1' again"),
        (header, "expected pairs of different"),
        ("id1,id2,question1,question2\n1,2,a,b\n", "expected a column `score"),
    )
