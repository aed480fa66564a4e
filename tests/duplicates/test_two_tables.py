"""`find_duplicates` of new rows: against another table, and against what an index has."""

import pytest

from qpr_jax import Retriever, UserError, find_duplicates
from qpr_jax.duplicates import search
from tests.duplicates.conftest import calibrate
from tests.runs import write_encoder


def test_a_column_that_two_tables_do_not_share_is_said(run, caplog):
    new, old = ([{"text": "a b", "shop": shop}] for shop in ("x", "y"))
    assert not len(find_duplicates(new, run=run, within="shop", against=old).pairs)
    assert caplog.messages == ["no value of `shop` is in both tables: nothing is compared"]


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_row_of_an_index_without_a_value_is_known(run, tmp_path, with_ids):
    entries = [(0, 0, "learn python", {"shop": "x"}), (1, 1, "cook rice", {"shop": None})]
    Retriever.build_in(tmp_path / "index", entries, run=run)
    texts = ["learn python", "cook rice", "LEARN python"]
    shops = [{"shop": "x"}, {"shop": None}, {"shop": None}]
    ids = [0, 1, 2] if with_ids else None
    for added in (1, 0):
        found = find_duplicates(
            texts, ids, shops, incremental=tmp_path / "index", within="shop", threshold=0.9
        )
        assert (len(found.pairs), len(found.kept)) == (0, added)


def test_new_rows_are_compared_with_old_ones_only(run):
    new = ["learn python", "learn python", "LEARN PYTHON", "cook rice", "what is rust"]
    old = ["Learn Python", "learn python", "a new car"]
    found = find_duplicates(new, run=run, against=old, threshold=0.95)
    pairs = {(pair.id1, pair.id2) for pair in found.pairs}
    assert pairs == {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)}
    assert {p.score for p in found.pairs if new[p.id1] == old[p.id2]} == {1.0}
    assert found.kept == [3, 4]
    (group,) = found.groups
    assert sorted(zip(group.of_table, group.ids, strict=True)) == [
        *((False, i) for i in (0, 1)),
        *((True, i) for i in (0, 1, 2)),
    ]
    assert not group.keeps_table
    assert group.link in pairs
    frame = found.groups.to_pandas()
    assert [*zip(frame["of_table"], frame["id"], strict=True)] == [
        *zip(group.of_table, group.ids, strict=True)
    ]
    expected = (*group.link, pytest.approx(group.distance))
    assert (*found.groups.to_arrow().to_pylist()[0].values(),)[4:7] == expected
    assert find_duplicates(new, run=run, against=[], threshold=0.95).kept == [0, 1, 2, 3, 4]


def test_equal_texts_of_two_tables_need_no_probability(tmp_path):
    write_encoder(tmp_path)
    calibrate(tmp_path, most=0.8)
    how = {"run": tmp_path, "against": ["a new car", "learn python"], "groups": "closure"}
    for chosen in ({"threshold": 0.9}, {"precision": 0.9}):
        found = find_duplicates(["learn python", "cook rice"], **how, **chosen)
        assert [(p.id1, p.id2, p.score) for p in found.pairs] == [(0, 1, 1.0)]
        assert found.kept == [1]
    how["against"] = []
    assert find_duplicates(["learn python"] * 2, **how, threshold=0.9).kept == [0, 1]


def test_many_copies_of_a_new_text_are_pairs_of_their_own(run, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "_ROWS", 7)
    new = ["learn python"] * 20 + ["cook rice"]
    old = ["LEARN python", "Learn Python", "cook rice"]
    found = find_duplicates(new, run=run, against=old, threshold=0.95, folder=tmp_path)
    expected = {*((i, j) for i in range(20) for j in (0, 1)), (20, 2)}
    assert sorted(pair[:2] for pair in found.pairs) == sorted(expected)
    assert found._found.listed == 41
    assert all(len(part.first) <= 7 for part in found._found.row_pairs())


@pytest.mark.parametrize("with_ids", [True, False])
def test_an_index_is_compared_with_what_is_new(run, tmp_path, with_ids):
    entries = [(0, 0, "learn python", None), (1, 1, "cook rice", None)]
    Retriever.build_in(tmp_path / "index", entries, run=run)
    new = ["learn python", "LEARN PYTHON", "what is rust", "What is rust"]
    ids = [0, "b", "c", "d"] if with_ids else None
    found = find_duplicates(new, ids, incremental=tmp_path / "index", threshold=0.95)
    names = ["b", "c", "d"] if with_ids else [3, 4, 5]
    assert {pair[:2] for pair in found.pairs} == {(0, names[0]), (names[1], names[2])}
    assert found.kept == [names[1]]
    assert len(Retriever.load(tmp_path / "index")) == 5
    again = find_duplicates(new, ids, incremental=tmp_path / "index", threshold=0.95)
    assert (len(again.pairs), again.kept) == (0, [])
    more = [*new, "LEARN PYTHON code"]
    third = find_duplicates(more, [*ids, "e"] if ids else None, incremental=tmp_path / "index",
                            max_distance=0)  # fmt: skip
    assert (len(third.pairs), len(third.kept)) == (0, 1)


def test_a_row_of_an_index_that_changed_replaces_the_old_one(run, tmp_path):
    entries = [(0, "a", "learn python", None), (1, "b", "cook rice", None)]
    Retriever.build_in(tmp_path / "index", entries, run=run)
    found = find_duplicates(["cook rice"], ["a"], incremental=tmp_path / "index", threshold=0.9)
    assert [pair[:2] for pair in found.pairs] == [("a", "b")]
    assert found.kept == []
    assert len(Retriever.load(tmp_path / "index")) == 2


def test_it_explains_the_pair_of_the_right_tables(run):
    new, old = ["learn python", "cook rice"], ["cook fish", "Learn Python"]
    found = find_duplicates(new, run=run, against=old, threshold=0.95)
    assert [pair[:2] for pair in found.pairs] == [(0, 1)]
    assert found.explain((0, 1)).distance == pytest.approx(found.pairs[0].distance, abs=1e-6)
    with pytest.raises(UserError, match="expected the ids of a pair that was found, got 1 and 0"):
        found.explain((1, 0))


def test_an_index_of_two_encoders_is_compared_by_that_of_its_questions(run, plain_run, tmp_path):
    """By its vectors, its calibration and its explanations; a search stays with the other."""
    write_encoder(tmp_path / "student", seed=5)
    old, new = ["learn python", "cook rice", "a new car"], ["how to cook rice", "LEARN python"]
    found = {}
    for name, how in (("one", {"run": run}), ("two", {"run": "student", "documents_by": run})):
        how["run"] = tmp_path / how["run"]
        Retriever.build(old, run=how.pop("run"), **how).save(tmp_path / name)
        found[name] = find_duplicates(new, incremental=tmp_path / name, threshold=0.2)
    one, two = ([*found[name].pairs] for name in ("one", "two"))
    assert one == two
    assert len(one) >= 2
    first = max(two, key=lambda pair: pair.distance)
    explained = found["two"].explain(first)
    assert explained.distance == pytest.approx(first.distance, rel=1e-4)
    loaded = Retriever.load(tmp_path / "two")
    assert len(loaded) == len(old) + 2
    assert loaded.encoder.identity != loaded.index.encoder
    Retriever.build(old, run=tmp_path / "student", documents_by=plain_run).save(tmp_path / "three")
    with pytest.raises(UserError, match="expected a run with calibrated probabilities"):
        find_duplicates(new, incremental=tmp_path / "three", threshold=0.2)
