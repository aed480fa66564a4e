"""Clusters of linked questions, and splits by them: by hand, on the real file, with labels."""

import csv
import hashlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.data.question_pairs import (
    QuestionPairs,
    cluster_pairs,
    cluster_report,
    connect,
    gather_pairs,
    in_one_cluster,
    read_question_pairs,
    say_joined,
    transitive_clusters,
)
from qpr_jax.data.splits import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    Splits,
    add_labels,
    join_apart,
    other_candidates,
    read_pairs,
    split_by_cluster,
    write_splits,
)
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from tests.refused import check_refused


def test_linked_against_scipy():
    generator = np.random.default_rng(0)
    for _ in range(100):
        count, links = generator.integers(1, 60), generator.integers(0, 60)
        pairs = generator.integers(0, count, (links, 2), np.int32)
        graph = coo_array((np.ones(links), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
        expected = connected_components(graph, directed=False)[1]
        same = expected[:, None] == expected
        assert (connect(count, pairs) == np.unique(same.argmax(1), return_inverse=True)[1]).all()
        clusters = transitive_clusters(count, pairs)
        linked = same.sum(1) > 1
        assert (clusters[~linked] == -1).all()
        assert ((clusters[linked, None] == clusters) == same[linked]).all()
    chain = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    assert not transitive_clusters(1000, chain[::-1]).any()


def test_pairs_of_clusters_against_plain_loops():
    clusters = np.random.default_rng(0).integers(-1, 40, 300).astype(np.int32)
    expected = [
        [a, b]
        for cluster in range(40)
        for a in range(300)
        for b in range(a + 1, 300)
        if clusters[a] == clusters[b] == cluster
    ]
    assert cluster_pairs(clusters).tolist() == expected


def test_report_of_clusters_by_hand():
    clusters = np.array([0, 0, 1, 1, 1, -1, -1], np.int32)
    pairs = np.array([[0, 1], [2, 3], [3, 4], [2, 4], [0, 2], [5, 6]])
    report = cluster_report(clusters, pairs, np.array([1, 1, 1, 0, 0, 0], bool))
    assert report == {
        **{"questions": 7, "clusters": 2, "clustered_questions": 5, "largest_cluster": 3},
        **{"cluster_pairs": 4, "sizes": {"2": 1, "3": 1}, "duplicates": 3},
        **{"non_duplicates": 3, "non_duplicates_inside_clusters": 1},
    }
    no_pairs = np.zeros((0, 2), np.int32)
    for count in (0, 3):
        none = transitive_clusters(count, no_pairs)
        assert cluster_pairs(none).shape == (0, 2)
        report = cluster_report(none, no_pairs, np.zeros(0, bool))
        assert (report["clusters"], report["largest_cluster"], report["sizes"]) == (0, 0, {})


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


def test_large_clusters_train_and_one_text_never_stands_in_two_splits():
    rows = twos(60)
    rows += [(1000, 1000 + i, "hub", f"spoke {i}", True) for i in range(1, 4)]
    rows += [(2000, 2001, "Spoke, 1!", "friend", True)]  # which takes its group along
    rows += [(500 + i, 600 + i, f"Q{2 * i}?", f"other{i}", True) for i in range(20)]  # clusters
    rows += [(700 + i, 800 + i, f"Q{2 * i}!", f"lone{i % 30}", False) for i in range(60)]
    data, clusters = log_of(rows)
    for seed in range(20):
        splits = split_by_cluster(data, clusters, seed=seed, held_out_pairs=10, largest_cluster=3)
        assert {1000, 1003, 2000, 2001} <= ids_of(data, splits, "train")
        seen: dict[str, int] = {}
        for text, split in zip(data.questions, splits.split_of.tolist(), strict=True):
            assert seen.setdefault(normalized_text(text), split) == split


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
    assert np.bincount(splits.split_of[clusters < 0]).tolist() == [161, 20, 20]
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


def test_an_empty_split_is_refused():
    check_refused(
        lambda rows, settings: split_by_cluster(*log_of(rows), **settings),
        (twos(9), {}, r"none for validation, of 9 in all \(clusters: 9\); give more duplicates"),
        (twos(10), {"held_out_pairs": 5}, "none for train, of 10 in all"),
        (twos(2), {"largest_cluster": 1}, "none for validation, of 2 in all"),
        ([(1, 2, "a", "b", False)], {}, "none for train, of 0 in all"),
    )


@pytest.mark.parametrize(("clusters", "size", "alone"), [(100, 60, 40), (40, 25, 0), (3, 9, 0)])
def test_large_clusters_are_held_out_where_small_ones_do_not_fill_a_split(clusters, size, alone):
    rng = np.random.default_rng(0)
    rows = [(i, i + 1, f"q{i}", f"q{i + 1}", True) for i in range(clusters * size)]
    rows = [rows[i] for i in rng.permutation(len(rows)) if (i + 1) % size]
    rows += twos(10_000 + alone, start=10_000)
    data, of = log_of(rows)
    splits = split_by_cluster(data, of)
    again = split_by_cluster(data, of)
    limit = min(len(cluster_pairs(of)) // 10, 5000)
    for split, name in enumerate(SPLITS):
        pairs, inside = splits.pairs[name], splits.split_of == split
        assert not set(of[inside]) & set(of[~inside])
        assert (splits.split_of[pairs] == split).all()
        # The pairs link whole clusters, as those who read the files need.
        np.testing.assert_array_equal(np.unique(pairs), np.flatnonzero(inside))
        assert transitive_clusters(len(of), pairs).max() + 1 == len(set(of[inside]))
        np.testing.assert_array_equal(pairs, again.pairs[name])
        if name in HELD_OUT:
            counts = np.bincount(of[inside], minlength=clusters)
            assert (counts == size).sum() == max(clusters // 10, 1)
            assert (counts == 2).sum() == alone // 10
            assert len(pairs) <= max(limit, inside.sum())
            of_pairs = np.bincount(of[pairs[:, 0]])
            assert len({*of_pairs[counts[: len(of_pairs)] == size]}) == 1


def test_written_splits(tmp_path):
    pairs = {
        "train": np.array([[0, 1], [1, 2]], np.int32),
        "validation": np.array([[3, 0]], np.int32),
        "test": np.zeros((0, 2), np.int32),
    }
    others = {"validation": np.array([[3, 2]], np.int32), "test": np.zeros((0, 2), np.int32)}
    splits = Splits(np.array([0, 0, -1, 1], np.int8), pairs, others)
    data = SimpleNamespace(ids=np.array([10, 11, 12, 2**62]), questions=["a", "b", "c\t", "d"])
    write_splits(tmp_path / "splits", data, splits)
    assert (tmp_path / "splits" / "train.tsv").read_bytes() == b"id1\tid2\n10\t11\n11\t12\n"
    assert (tmp_path / "splits" / "validation.tsv").read_text() == f"id1\tid2\n{2**62}\t10\n"
    assert (tmp_path / "splits" / "test.tsv").read_text() == "id1\tid2\n"
    listed = (tmp_path / "splits" / "questions.tsv").read_text()
    assert listed == f"id\tsplit\n10\ttrain\n11\ttrain\n12\tnone\n{2**62}\tvalidation\n"
    labeled = read_question_pairs(tmp_path / "splits" / "labelled_validation.jsonl")
    assert labeled.questions == ["d", "a", "c\t"]
    assert labeled.pairs.tolist() == [[0, 1], [0, 2]]
    assert labeled.is_duplicate.tolist() == [True, False]
    assert (tmp_path / "splits" / "labelled_test.jsonl").read_text() == ""
    assert read_pairs(tmp_path, "validation").tolist() == [[2**62, 10]]


def test_pairs_that_cannot_be_read(tmp_path):
    def read(text):
        (tmp_path / "splits").mkdir(exist_ok=True)
        (tmp_path / "splits" / "test.tsv").write_text(text)
        read_pairs(tmp_path, "test")

    check_refused(
        read,
        ("id1\tid2\n", "expected pairs of the split test, got none"),
        ("id1\tid2\n1\t2\n3\tx\n", "splits/test.tsv: expected rows of two cells .*'x'"),
        ("id1\tid2\n1\t2\n3\n", "splits/test.tsv: expected rows of two cells"),
    )
    with pytest.raises(UserError, match="expected the folder of a run, with splits/, found none"):
        read_pairs(tmp_path / "none", "test")


def test_the_real_file(quora_file):
    data = read_question_pairs(quora_file)
    assert len(data.questions) == len(data.ids) == len(set(data.ids.tolist())) == 165_493
    with open(quora_file, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    assert [row[3:5] for row in rows] == [
        [data.questions[a], data.questions[b]] for a, b in data.pairs.tolist()
    ]
    assert data.is_duplicate.sum() == 135_089
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    report = cluster_report(clusters, data.pairs, data.is_duplicate)
    counts = {"clusters": 54_361, "clustered_questions": 136_883, "largest_cluster": 114}
    counts |= {"cluster_pairs": 230_306, "non_duplicates_inside_clusters": 6}
    assert report.items() >= counts.items()
    splits = split_by_cluster(data, clusters)
    assert hashlib.sha256(splits.split_of.tobytes()).hexdigest().startswith("0aff06466b7e56e9")
    assert [len(splits.pairs[name]) for name in SPLITS] == [220_306, 5_000, 5_000]
    for name, queries in (("validation", 2_580), ("test", 2_930)):
        assert len(np.unique(splits.pairs[name][:, 0])) == queries
        assert len(splits.non_duplicates[name]) > 100


@pytest.fixture(scope="module")
def split():
    data = synthetic_pairs(seed=0, clusters=200)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    return data, clusters, split_by_cluster(data, clusters, held_out_pairs=40)


def labels_of(*rows):
    names = [*dict.fromkeys(text for row in rows for text in row[:2])]
    pairs = [[names.index(a), names.index(b)] for a, b, _ in rows]
    labels = np.array([row[2] for row in rows], np.bool_)
    return QuestionPairs(names, np.arange(len(names)), np.array(pairs), labels, {})


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


def test_a_label_overrules_the_data(split):
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
    counts = [sum(map(len, split.pairs.values())) for split in (joined, splits)]
    assert counts[0] < counts[1]


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_no_pair_apart_is_ever_joined(seed):
    rng = np.random.default_rng(seed)
    duplicates, apart = rng.integers(20, size=(30, 2)), rng.integers(20, size=(8, 2))
    duplicates, apart = (pairs[pairs[:, 0] != pairs[:, 1]] for pairs in (duplicates, apart))
    kept = join_apart(20, duplicates, apart)
    assert not in_one_cluster(transitive_clusters(20, duplicates[kept]), apart).any()
    # None was left out for nothing.
    for row in np.flatnonzero(~kept):
        with_it = np.concatenate([duplicates[kept], duplicates[[row]]])
        assert in_one_cluster(transitive_clusters(20, with_it), apart).any()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_other_candidates_are_of_another_cluster(sizes):
    """So many pairs of each cluster; no permutation exists where one has more than half."""
    count = sum(sizes)
    ends = [2 * size for size in (*sizes, 5)]
    clusters = np.repeat(np.append(np.arange(len(sizes)) * 3, -1), ends)
    pairs = np.arange(2 * count).reshape(-1, 2)
    others, again = (other_candidates(pairs, clusters, seed=1) for _ in range(2))
    assert (others == again).all()
    assert (clusters[others] != clusters[pairs[:, 0]]).all()
    if max(sizes) * 2 <= count:
        assert sorted(others.tolist()) == pairs[:, 1].tolist()


def test_a_few_labels_that_join_most_of_a_table_are_told(caplog):
    """A hub of many clusters, or rows that chain them; not questions with many duplicates."""
    rows = [(5 * i, 5 * i + n) for i in range(30) for n in range(1, 5)]
    hub, chain = [(150, 5 * i) for i in range(12)], [(5 * i, 5 * i + 5) for i in range(29)]
    for more, said in (
        (hub, "61 of 151 questions in one cluster: '150' alone joins 12 clusters; check the rows"),
        (chain, r"150 of 150 questions in one cluster, also by the rows '70' = '75'; "),
        ([], ""),
    ):
        pairs = np.array(rows + more)
        texts = [*map(str, range(pairs.max() + 1))]
        found = say_joined(texts, pairs, transitive_clusters(len(texts), pairs))
        assert re.search(said, found)
        assert bool(found) == bool(said)
    star = np.array([(200, 201 + n) for n in range(40)])
    assert "alone" not in say_joined([*"x" * 241], star, transitive_clusters(241, star))
