import re

import numpy as np
import pytest

from qpr_jax.data.clusters import transitive_clusters
from qpr_jax.data.pairs import QuestionPairs, gather_pairs, read_labeled, read_question_pairs
from qpr_jax.data.splits import (
    HELD_OUT,
    SPLITS,
    Splits,
    read_pairs,
    read_split,
    split_by_cluster,
    write_splits,
)
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text


def log_of(rows):
    """Rows (qid1, qid2, text1, text2, label), and the clusters of their questions."""
    data = gather_pairs(rows)
    return data, transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])


def twos(count, start=0):
    """Clusters of two questions with ids 2i and 2i + 1."""
    return [(2 * i, 2 * i + 1, f"q{2 * i}", f"q{2 * i + 1}", True) for i in range(start, count)]


def ids_of(data: QuestionPairs, splits: Splits, name: str) -> set[int]:
    return set(data.ids[splits.split_of == SPLITS.index(name)].tolist())


def test_the_rule_by_hand():
    rows = twos(10)
    order = np.random.default_rng(3).permutation(10)
    data, clusters = log_of(rows[::-1])  # the order in the file does not matter, the ids do
    splits = split_by_cluster(data, clusters, seed=3, held_out_pairs=2)
    held = [{2 * i, 2 * i + 1} for i in order]
    assert ids_of(data, splits, "validation") == held[0] | held[1]
    assert ids_of(data, splits, "test") == held[2] | held[3]
    assert ids_of(data, splits, "train") == set().union(*held[4:])
    assert splits.split_of.dtype == np.int8


def test_a_group_that_does_not_fit_is_passed_on():
    rows = [*twos(3), (100, 101, "a", "b", True), (101, 102, "b", "c", True)]
    order = np.random.default_rng(0).permutation(4).tolist()
    data, clusters = log_of(rows)
    splits = split_by_cluster(data, clusters, held_out_pairs=2)
    # The cluster of three has three pairs: more than either may hold.
    assert {100, 101, 102} <= ids_of(data, splits, "train")
    small = [i for i in order if i < 3]
    assert ids_of(data, splits, "validation") == {2 * i + j for i in small[:2] for j in (0, 1)}
    assert ids_of(data, splits, "test") == {2 * small[2], 2 * small[2] + 1}


def test_large_clusters_train_and_take_their_group_along():
    star = [(1000, 1000 + i, "hub", f"spoke {i}", True) for i in range(1, 4)]
    same_text = [(2000, 2001, "Spoke, 1!", "friend", True)]
    for seed in range(20):
        data, clusters = log_of(twos(6) + star + same_text)
        splits = split_by_cluster(data, clusters, seed=seed, held_out_pairs=2, largest_cluster=3)
        assert {1000, 1003, 2000, 2001} <= ids_of(data, splits, "train")


def test_one_text_never_stands_in_two_splits():
    rows = twos(60)
    rows += [(500 + i, 600 + i, f"Q{2 * i}?", f"other{i}", True) for i in range(20)]  # clusters
    rows += [(700 + i, 800 + i, f"Q{2 * i}!", f"lone{i % 30}", False) for i in range(60)]
    data, clusters = log_of(rows)
    for seed in range(5):
        splits = split_by_cluster(data, clusters, seed=seed, held_out_pairs=10)
        seen: dict[str, int] = {}
        for text, split in zip(data.questions, splits.split_of.tolist(), strict=True):
            assert seen.setdefault(normalized_text(text), split) == split


def test_questions_in_no_cluster_are_split_80_10_10():
    lone = [(1000 + i, 2000 + i, f"lone {i}", f"alone {i}", False) for i in range(100)]
    data, clusters = log_of(twos(10) + lone)
    splits = split_by_cluster(data, clusters, held_out_pairs=2)
    alone = splits.split_of[clusters < 0]
    assert np.bincount(alone).tolist() == [160, 20, 20]


def test_pairs_and_non_duplicates():
    rows = [
        *twos(30),
        (0, 2, "q0", "q2", False),
        (200, 201, "x", "y", True),
        (201, 202, "y", "z", True),
        (200, 202, "x", "z", False),  # inside a cluster: label noise
        *[(300 + i, 301 + i, f"lone{i}", f"lone{i + 1}", False) for i in range(200)],
    ]
    data, clusters = log_of(rows)
    splits = split_by_cluster(data, clusters)
    total = 0
    for split, name in enumerate(SPLITS):
        pairs, others = splits.pairs[name], splits.non_duplicates[name]
        assert (splits.split_of[pairs] == split).all()
        assert (splits.split_of[others] == split).all()
        assert (pairs[:, 0] < pairs[:, 1]).all()
        assert (clusters[pairs[:, 0]] == clusters[pairs[:, 1]]).all()
        assert len(others)
        assert not {200, 201, 202} & set(data.ids[others].ravel().tolist())
        total += len(pairs)
    assert total == 33
    assert [len(splits.pairs[name]) for name in ("validation", "test")] == [3, 3]


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        (twos(9), {}, "none for validation, of 9 in all; give more pairs"),
        (twos(10), {"held_out_pairs": 5}, "none for train, of 10 in all"),
        (twos(10), {"largest_cluster": 1}, "none for validation, of 10 in all"),
        ([(1, 2, "a", "b", False)], {}, "none for train, of 0 in all"),
    ],
)
def test_an_empty_split_is_refused(rows, settings, said):
    data, clusters = log_of(rows)
    with pytest.raises(UserError, match=said):
        split_by_cluster(data, clusters, **settings)


def test_written_splits(tmp_path):
    pairs = {
        "train": np.array([[0, 1], [1, 2]], np.int32),
        "validation": np.array([[3, 0]], np.int32),
        "test": np.zeros((0, 2), np.int32),
    }
    others = {"validation": np.array([[3, 2]], np.int32), "test": np.zeros((0, 2), np.int32)}
    splits = Splits(np.array([0, 0, -1, 1], np.int8), pairs, others)
    write_splits(tmp_path / "splits", splits, np.array([10, 11, 12, 2**62]), ["a", "b", "c\t", "d"])
    assert (tmp_path / "splits" / "train.tsv").read_bytes() == b"id1\tid2\n10\t11\n11\t12\n"
    assert (tmp_path / "splits" / "validation.tsv").read_text() == f"id1\tid2\n{2**62}\t10\n"
    assert (tmp_path / "splits" / "test.tsv").read_text() == "id1\tid2\n"
    listed = (tmp_path / "splits" / "questions.tsv").read_text()
    assert listed == f"id\tsplit\n10\ttrain\n11\ttrain\n12\tnone\n{2**62}\tvalidation\n"
    labeled = read_labeled(str(tmp_path / "splits" / "labelled_validation.jsonl"))
    assert labeled.questions == ["d", "a", "c\t"]
    assert labeled.pairs.tolist() == [[0, 1], [0, 2]]
    assert labeled.is_duplicate.tolist() == [True, False]
    assert (tmp_path / "splits" / "labelled_test.jsonl").read_text() == ""


def test_pairs_are_read_as_they_were_written(tmp_path):
    pairs = dict.fromkeys(("train", "validation", "test"), np.array([[0, 1], [2, 0]], np.int32))
    splits = Splits(np.zeros(3, np.int8), pairs, dict.fromkeys(HELD_OUT, pairs["test"][:0]))
    write_splits(tmp_path / "splits", splits, np.array([10, 11, 2**63 - 1]), ["a", "b", "c"])
    read = read_pairs(tmp_path, "test")
    assert read.dtype == np.int64
    assert read.tolist() == [[10, 11], [2**63 - 1, 10]]
    assert read_split(tmp_path, "train").tolist() == [10, 11, 2**63 - 1]
    assert read_split(tmp_path, "test").tolist() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id1\tid2\n", "expected pairs of the split, got none"),
        ("id1\tid2\n1\t2\n3\tx\n", "line 3: expected two ids; got ['3', 'x']"),
        ("id1\tid2\n1\t1\n", "line 2: expected two ids; got ['1', '1']"),
        ("id1\tid2\n1\n", "line 2: expected two ids; expected 2 fields"),
        ("a\tb\n1\t2\n", "expected a column `id1`"),
        (None, "cannot be read"),
    ],
)
def test_pairs_that_cannot_be_read(tmp_path, text, said):
    (tmp_path / "splits").mkdir()
    if text is not None:
        (tmp_path / "splits" / "test.tsv").write_text(text)
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/splits/test.tsv")) as error:
        read_pairs(tmp_path, "test")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_pairs_of_no_run_or_split(tmp_path):
    with pytest.raises(UserError, match="expected the folder of a run, with splits/, found none"):
        read_pairs(tmp_path, "test")
    with pytest.raises(UserError, match="`split`: expected one of train, validation, test, got"):
        read_pairs(tmp_path, "tests")
    with pytest.raises(UserError, match="expected the folder of a run, with splits/, found none"):
        read_split(tmp_path, "test")


def test_the_real_file(quora_file):
    data = read_question_pairs(quora_file)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(data, clusters)
    assert {name: len(pairs) for name, pairs in splits.pairs.items()} == {
        "train": 220_306,
        "validation": 5_000,
        "test": 5_000,
    }
    for name, cluster_count, queries in (("validation", 1_750, 2_580), ("test", 2_056, 2_930)):
        pairs = splits.pairs[name]
        assert len(np.unique(clusters[pairs])) == cluster_count
        assert len(np.unique(pairs[:, 0])) == queries
        assert len(splits.non_duplicates[name]) > 100
