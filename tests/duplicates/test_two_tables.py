"""`find_duplicates` of new rows: against another table, and against what an index has."""

import re

import numpy as np
import pytest

from qpr_jax import Retriever, UserError, find_duplicates
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from tests.duplicates.test_find import texts_of
from tests.runs import calibrate, write_encoder


def test_new_rows_are_compared_with_old_ones_only(run):
    new = ["learn python", "learn python", "LEARN PYTHON", "cook rice", "what is rust"]
    old = ["Learn Python", "learn python", "a new car"]
    found = find_duplicates(new, encoder=run, against=old, threshold=0.95)
    assert {pair[:3] for pair in found.pairs} == {(0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0)}
    assert found.kept == [3, 4]
    (group,) = found.groups
    members = {*zip(group.of_table, group.ids, strict=True)}
    assert members == {(False, 0), (False, 1), (True, 0), (True, 1), (True, 2)}
    assert not any(map(min, group.of_table, group.stays))
    row = found.to_dicts("groups")[0]
    assert group.link == (row["link1"], row["link2"]) in {pair[:2] for pair in found.pairs}
    assert find_duplicates(new, encoder=run, against=[], threshold=0.95).kept == [0, 1, 2, 3, 4]
    assert find_duplicates([], encoder=run, against=old, threshold=0.95).kept == []


def test_equal_texts_of_two_tables_need_no_probability(tmp_path):
    write_encoder(tmp_path)
    calibrate(tmp_path, middle=0.7)
    how = {"encoder": tmp_path, "against": ["a new car", "learn python"], "groups": "closure"}
    for chosen in ({"threshold": 0.9}, {"threshold": 1}):
        found = find_duplicates(["learn python", "cook rice"], **how, **chosen)
        assert [(p.id1, p.id2, p.score) for p in found.pairs] == [(0, 1, 1.0)]
        assert found.kept == [1]
    how["against"] = []
    assert find_duplicates(["learn python"] * 2, **how, threshold=0.9).kept == [0, 1]


@pytest.mark.parametrize("with_ids", [True, False])
def test_an_index_is_compared_with_what_is_new(run, with_ids):
    index = Retriever.build(["learn python", "cook rice"], encoder=run)
    new = ["learn python", "LEARN PYTHON", "what is rust", "What is rust"]
    ids = [0, "b", "c", "d"] if with_ids else None
    found = find_duplicates(new, ids, against=index, threshold=0.95)
    assert len(index) == 2
    assert index.add_new(found) == 3
    names = ["b", "c", "d"] if with_ids else [3, 4, 5]
    assert {pair[:2] for pair in found.pairs} == {(0, names[0]), (names[1], names[2])}
    assert found.kept == [names[1]]
    assert len(index) == 5
    again = find_duplicates(new, ids, against=index, threshold=0.95)
    assert index.add_new(again) == 0
    assert (len(again.pairs), again.kept) == (0, [])
    more = [*new, "LEARN PYTHON code"]
    ids = [*ids, "e"] if ids else None
    third = find_duplicates(more, ids, against=index, max_distance=0)
    assert (len(third.pairs), len(third.kept)) == (0, 1)


def test_a_row_of_an_index_without_a_value_is_known(run):
    for with_ids in [True, False]:
        old = [{"text": "learn python", "shop": "x"}, {"text": "cook rice", "shop": None}]
        index = Retriever.build(old, encoder=run)
        texts = ["learn python", "cook rice", "LEARN python"]
        shops = [{"shop": "x"}, {"shop": None}, {"shop": None}]
        ids = [0, 1, 2] if with_ids else None
        for added in (1, 0):
            options = {"against": index, "block_on": "shop", "threshold": 0.9}
            found = find_duplicates(texts, ids, shops, **options)
            index.add_new(found)
            assert (len(found.pairs), len(found.kept)) == (0, added)


def test_questions_of_an_index_are_replaced_only_on_demand(run):
    index = Retriever.build(["learn python", "cook rice"], ["a", "b"], encoder=run)
    options = {"against": index, "threshold": 0.9}
    with pytest.raises(UserError, match="other questions have in the index: 1, such as 'a'"):
        find_duplicates(["cook rice", "a new car"], ["a", "c"], **options)
    assert [question.text for question in index.store.questions()] == ["learn python", "cook rice"]
    found = find_duplicates(["cook rice"], ["a"], **options, replace=True)
    index.add_new(found)
    assert ([pair[:2] for pair in found.pairs], found.kept) == ([("a", "b")], [])
    assert [question.text for question in index.store.questions()] == ["cook rice"] * 2
    index.add_new(
        find_duplicates(["Cook rice?"], ["a"], **options)
    )  # another spelling of the question
    assert index.store.get(["a"])[0].text == "Cook rice?"


@pytest.mark.parametrize("keep", ["first", "central"])
def test_only_what_is_new_is_encoded(run, monkeypatch, keep):
    texts = sorted({*texts_of(150)})
    old, new = texts[:-10], texts[-10:]
    expected = find_duplicates([*old, *new], encoder=run, max_distance=0.8)
    index = Retriever.build(old, encoder=run)
    seen, encode = [], CnnEncoder.encode

    def note(self, given):
        seen.extend(given)
        return encode(self, given)

    monkeypatch.setattr(CnnEncoder, "encode", note)
    ids = [f"n{i}" for i in range(10)]
    options = {"against": index, "max_distance": 0.8, "keep": keep}
    found = find_duplicates(new, ids, **options)
    index.add_new(found)
    distances = [p.distance for p in expected.pairs if max(p[:2]) >= len(old)]
    assert len(distances) > 5
    assert [p.distance for p in found.pairs] == pytest.approx(distances, abs=1e-5)
    assert sorted(seen) == sorted(new)
    vectors = np.concatenate([vectors for _, vectors in index.store.blocks()])
    np.testing.assert_allclose(vectors, encode(index.encoder, [*old, *new]), atol=1e-6)
    seen.clear()
    found = find_duplicates(new, ids, **options)
    assert (len(found.pairs), found.kept, seen) == (0, [], [])


def test_a_change_of_the_index_during_a_search_is_an_error(run):
    index = Retriever.build(["learn python", "cook rice"], encoder=run)
    for number in (3, 4):
        found = find_duplicates(["a new car"], ["car"], against=index, threshold=0.9)
        assert found.kept == ["car"]
        if number == 3:
            index.add(["what is rust"])
            with pytest.raises(UserError, match="nothing was added; do the same again"):
                index.add_new(found)
        else:
            index.add_new(found)
        assert len(index) == number


def test_an_index_is_compared_by_itself(run, caplog):
    index = Retriever.build(["cook rice"], encoder=run)
    with pytest.raises(UserError, match=r"`encoder`: .*leave it out"):
        find_duplicates(["a new car"], encoder=run, against=index)
    with pytest.raises(UserError, match="`questions`, position 1: expected no id"):
        find_duplicates([{"text": "a"}, {"text": "b", "id": 1}], against=index)
    index.remove([0])  # an empty index gets all rows
    found = find_duplicates(["a new car", "A new car"], against=index, threshold=0.9)
    index.add_new(found)
    assert (len(found.pairs), len(found.kept), len(index)) == (1, 1, 2)
    new, old = ([{"text": "a b", "shop": shop}] for shop in ("x", "y"))
    caplog.clear()
    assert not len(find_duplicates(new, encoder=run, block_on="shop", against=old).pairs)
    assert caplog.messages == ["no value of `shop` is in both tables: nothing is compared"]


def test_more_pairs_than_memory_holds_name_the_option_that_fits(run):
    texts = texts_of(400)
    how = {"encoder": run, "memory": 400 * 2000}
    with pytest.raises(UserError, match=r"about .* max_distance of") as raised:
        find_duplicates(texts, **how, max_distance=3.0)
    fitting = float(re.findall(r"[0-9.]+", str(raised.value))[-1])
    assert len(find_duplicates(texts, max_distance=fitting, **how).pairs) > 100


def test_only_pairs_that_count_take_memory(run):
    """Guards lower the scores of all pairs of near texts here."""
    texts = [f"how {'not ' * (i % 2)}to cook rice {'?' * i}" for i in range(60)]
    with pytest.raises(UserError, match=r"pairs count, .*give fewer questions"):
        find_duplicates(texts_of(400), encoder=run, threshold=0, memory=400)
    found = find_duplicates(texts, encoder=run, threshold=0.3)
    fits = find_duplicates(texts, encoder=run, threshold=0.3, memory=400 * (len(found.first) + 1))
    assert fits.pairs == found.pairs


def test_texts_without_a_word_are_equal_only_if_written_alike(run):
    signs = ["???", "!!!", ":)", "\U0001f525", "\U0001f525\U0001f525", "\u2764\ufe0f", "---"]
    for how in ({"threshold": 0}, {"max_distance": 9}):
        found = find_duplicates([*signs, "\u2764", "cook rice"], encoder=run, **how)
        assert {(pair.question1, pair.question2) for pair in found.pairs} == {(signs[5], "\u2764")}
    (hits,) = Retriever.build([*signs, "cook rice"], encoder=run).search([signs[3]], 8)
    assert [hit.score for hit in hits] == [1.0] + [0.0] * 7
