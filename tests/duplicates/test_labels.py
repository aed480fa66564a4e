"""Labels on pairs decide about them."""

import csv
import random

import pytest

from qpr_jax import Retriever, UserError, find_duplicates
from tests.duplicates.test_find import sets_of, texts_of

HEADER = ["question1", "question2", "is_duplicate"]


def write_labels(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return path


def texts_in(found):
    return {frozenset(pair[4:]): pair.score for pair in found.pairs}


@pytest.mark.parametrize("seed", range(3))
def test_labels_decide_and_nothing_else_changes(run, tmp_path, seed):
    texts = sorted({*texts_of(40, seed)})
    before = texts_in(find_duplicates(texts, encoder=run, threshold=0.4))
    rng = random.Random(seed)
    pairs = [frozenset(rng.sample(texts, 2)) for _ in range(60)]
    labels = dict.fromkeys([*rng.sample(sorted(before, key=sorted), 20), *pairs], 0)
    labels |= dict.fromkeys(rng.sample([*labels], 30), 1)
    assert {before.keys() >= {pair} for pair, same in labels.items() if same} == {True, False}
    rows = [[*rng.sample([*pair], 2), same] for pair, same in labels.items()]
    path = write_labels(tmp_path / "labels.csv", [[a.upper(), f"{b}?", c] for a, b, c in rows])
    found = find_duplicates(texts, encoder=run, threshold=0.4, labels=path)
    same = dict.fromkeys((pair for pair, label in labels.items() if label), 1.0)
    expected = {pair: score for pair, score in before.items() if pair not in labels} | same
    assert texts_in(found) == expected
    assert [pair.score for pair in found.pairs] == sorted(expected.values(), reverse=True)
    vectors = dict(zip(texts, Retriever.build(["a"], encoder=run).encode(texts), strict=True))
    for pair in found.pairs:
        apart = vectors[pair.question1] - vectors[pair.question2]
        assert pair.distance == pytest.approx(float(apart @ apart), abs=1e-5)
    for group in found.groups:
        members = {frozenset((a, b)) for a in group.questions for b in group.questions if a != b}
        assert members <= expected.keys()
    assert texts_in(found.at_least(1.0)).keys() >= same.keys()


def test_rows_that_are_not_compared_stay_apart(run, tmp_path):
    table = [{"id": i, "text": t, "kind": k} for i, t, k in [(1, "learn", "a"), (2, "bake", "b")]]
    path = write_labels(tmp_path / "labels.csv", [["learn", "bake", 1], ["learn", "fly", 1]])
    options = {"encoder": run, "threshold": 0.9, "labels": path}
    assert sets_of(find_duplicates(table, **options)) == {frozenset([1, 2])}
    assert not find_duplicates(table, **options, block_on="kind").pairs
    across = find_duplicates([table[0]], against=[table[1]], **options)
    assert [pair[:3] for pair in across.pairs] == [(1, 2, 1.0)]
    index = Retriever.build(table, encoder=run)
    more = [{"id": 3, "text": "fly"}]
    added = find_duplicates(more, against=index, threshold=0.9, labels=path)
    assert [pair[:3] for pair in added.pairs] == [(1, 3, 1.0)]


def test_a_file_without_labels_is_refused(run, tmp_path):
    (tmp_path / "labels.csv").write_text("question1,question2\na,b\n")
    with pytest.raises(UserError, match="is_duplicate"):
        find_duplicates(["a", "b"], encoder=run, labels=tmp_path / "labels.csv")
