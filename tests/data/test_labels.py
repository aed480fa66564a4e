"""Verdicts of a person, and labels that are added to the training split."""

import numpy as np
import pytest

from qpr_jax.data.clusters import in_one_cluster, transitive_clusters
from qpr_jax.data.pairs import LabeledPairs, read_verdicts
from qpr_jax.data.splits import HELD_OUT, SPLITS, TRAIN, add_labels, join_apart, split_by_cluster
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.errors import UserError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_scores_and_weights_are_optional(tmp_path):
    path = write(
        tmp_path / "v.csv",
        "id1,id2,question1,question2,is_duplicate,score,weight\n1,2,a,b,1,0.75,2\n2,3,b,c,0,0.25,\n",
    )
    found = read_verdicts(path)
    assert found.labeled.questions == ["a", "b", "c"]
    assert found.labeled.pairs.tolist() == [[0, 1], [1, 2]]
    assert found.labeled.is_duplicate.tolist() == [True, False]
    assert found.scores.tolist() == [0.75, 0.25]
    assert found.weights.tolist() == [2, 1]
    lines = '{"question1": "a", "question2": "b", "is_duplicate": 1}\n'
    found = read_verdicts(write(tmp_path / "v.jsonl", lines))
    assert found.scores is None
    assert found.weights.tolist() == [1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,b,2,0.5,1", "line 2: expected `is_duplicate` 0 or 1, got '2'"),
        ("a,b,1,1.5,1", "line 2: expected `score`, a probability, got '1.5'"),
        ("a,b,1,0.5,0", "line 2: expected `weight`, a number above 0, got '0'"),
        ("a,b,1,0.5,x", "line 2: expected `weight`, a number above 0, got 'x'"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, said):
    path = write(tmp_path / "v.csv", f"question1,question2,is_duplicate,score,weight\n{row}\n")
    with pytest.raises(UserError, match=said):
        read_verdicts(path)


def test_scores_are_of_one_calibration(tmp_path):
    path, names = tmp_path / "v.csv", "question1,question2,is_duplicate,score,calibration\n"
    found = read_verdicts(write(path, f"{names}a,b,1,0.5,0af3\nb,c,0,0.5,0af3\n"))
    assert found.scored_by == "0af3"
    with pytest.raises(UserError, match="expected scores of one `calibration`, got"):
        read_verdicts(write(path, f"{names}a,b,1,0.5,0af3\nb,c,0,0.5,\n"))


def test_other_columns_are_refused(tmp_path):
    with pytest.raises(UserError, match="expected a column `is_duplicate`"):
        read_verdicts(write(tmp_path / "v.csv", "question1,question2\na,b\n"))
    empty = write(tmp_path / "e.csv", "question1,question2,is_duplicate\n")
    with pytest.raises(UserError, match="expected verdicts, got none"):
        read_verdicts(empty)


@pytest.fixture(scope="module")
def split():
    data = synthetic_pairs(seed=0, clusters=200)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    return data, clusters, split_by_cluster(data, clusters, held_out_pairs=40)


def labels_of(*rows):
    names = [*dict.fromkeys(text for row in rows for text in row[:2])]
    pairs = [[names.index(a), names.index(b)] for a, b, _ in rows]
    return LabeledPairs(names, np.array(pairs), np.array([row[2] for row in rows], np.bool_))


def rows_of(data, *texts):
    return [data.questions.index(text) for text in texts]


def test_new_questions_and_pairs_are_trained_on(split):
    data, _, splits = split
    train = data.questions[splits.pairs["train"][0, 0]]
    added = labels_of(("brand new one", train, 1), ("brand new one", "brand new two", 0))
    both, clusters, after = add_labels(data, splits, added)
    one, two, known = rows_of(both, "brand new one", "brand new two", train)
    assert clusters[one] == clusters[known] >= 0
    assert clusters[two] == -1
    assert (after.split_of[[one, two]] == TRAIN).all()
    assert [one, two] in after.non_duplicates["train"].tolist()
    assert (known, one) in {tuple(sorted(pair)) for pair in after.pairs["train"].tolist()}
    assert len({*both.ids.tolist()}) == len(both.questions)
    assert both.report["added_labels"] == 2
    assert both.report["held_out_labels"] == both.report["overruled_duplicates"] == 0


def test_held_out_pairs_stay_and_are_not_trained_on(split):
    data, _, splits = split
    rows = []
    for name in HELD_OUT:
        query, other = splits.pairs[name][0].tolist()
        rows.append((data.questions[query].upper(), "brand new", 1))  # the same normalized text
        rows.append((data.questions[query], data.questions[other], 0))
    both, clusters, after = add_labels(data, splits, labels_of(*rows))
    assert both.questions == data.questions
    assert both.report["held_out_labels"] == 4
    for name in HELD_OUT:
        np.testing.assert_array_equal(after.pairs[name], splits.pairs[name])
        np.testing.assert_array_equal(after.non_duplicates[name], splits.non_duplicates[name])
        assert in_one_cluster(clusters, after.pairs[name]).all()
    np.testing.assert_array_equal(after.split_of, splits.split_of)


def test_a_verdict_overrules_the_data(split):
    """A pair in one cluster is in two afterwards, also where a chain joined it."""
    data, clusters, splits = split
    sizes = np.bincount(clusters[clusters >= 0])
    train = clusters[splits.split_of == TRAIN]
    large = next(i for i in np.argsort(-sizes) if i in train)
    first, *_, last = np.flatnonzero(clusters == large).tolist()
    apart = labels_of((data.questions[first], data.questions[last], 0))
    both, after, joined = add_labels(data, splits, apart)
    assert after[first] != after[last] or after[first] == -1
    assert both.report["overruled_duplicates"] + (len(data.pairs) - len(both.pairs) + 1) >= 1
    assert [first, last] in joined.non_duplicates["train"].tolist()
    assert sum(len(pairs) for pairs in joined.pairs.values()) < sum(
        len(splits.pairs[name]) for name in SPLITS
    )


def test_duplicates_join_but_for_those_that_are_apart():
    duplicates = np.array([[0, 1], [1, 2], [2, 3], [4, 5], [3, 0]])
    assert join_apart(6, duplicates, np.array([[0, 4]])).all()  # never joined
    kept = join_apart(6, duplicates, np.array([[0, 3]]))
    assert kept.tolist() == [True, True, False, True, False]
    kept = join_apart(6, duplicates, np.array([[0, 1], [1, 2], [3, 0]]))
    assert kept.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("seed", range(5))
def test_no_pair_apart_is_ever_joined(seed):
    rng = np.random.default_rng(seed)
    duplicates, apart = rng.integers(30, size=(60, 2)), rng.integers(30, size=(15, 2))
    duplicates, apart = (pairs[pairs[:, 0] != pairs[:, 1]] for pairs in (duplicates, apart))
    kept = join_apart(30, duplicates, apart)
    assert not in_one_cluster(transitive_clusters(30, duplicates[kept]), apart).any()
    # None was left out for nothing.
    for row in np.flatnonzero(~kept):
        with_it = np.concatenate([duplicates[kept], duplicates[[row]]])
        assert in_one_cluster(transitive_clusters(30, with_it), apart).any()
