"""What a call of `find_duplicates` that was killed leaves in its folder and in an index."""

import dataclasses
import itertools

import numpy as np
import pytest

from qpr_jax import Recipe, Retriever, UserError, find_duplicates
from qpr_jax.duplicates import find
from qpr_jax.duplicates.rows import read_rows
from qpr_jax.duplicates.scoring import rerank_pairs
from qpr_jax.duplicates.vectors import encode_entries
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.pair_search import find_pairs
from qpr_jax.reranking.light import LIGHT
from qpr_jax.reranking.pairs import PairReranker
from qpr_jax.reranking.second_stage import read_stages
from tests.duplicates.test_find import pairs_of, texts_of


class Killed(BaseException):
    """Ends a call as a kill does."""


def kill(*args, **kwargs):
    raise Killed


@pytest.mark.parametrize("phase", ["encode", "score"])
def test_what_a_kill_leaves_belongs_to_no_other_table(reranked_run, tmp_path, monkeypatch, phase):
    owner, name = {
        "encode": (CnnEncoder, "encode"),
        "score": (PairReranker, "_add"),
    }[phase]
    texts, others = texts_of(40), texts_of(40, seed=1)
    how = {"run": reranked_run, "threshold": 0.3}
    expected = find_duplicates(texts, **how)
    find_duplicates(texts, **how, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            find_duplicates(others, **how, folder=tmp_path)
    assert pairs_of(find_duplicates(texts, **how, folder=tmp_path)) == pairs_of(expected)


@pytest.mark.parametrize("name", ["vectors.f32", "pair_scores.bin"])
def test_a_file_that_was_cut_is_made_again(reranked_run, tmp_path, name):
    how = {"run": reranked_run, "threshold": 0.3, "folder": tmp_path}
    expected = pairs_of(find_duplicates(texts_of(40), **how))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-100])
    assert pairs_of(find_duplicates(texts_of(40), **how)) == expected


def test_scores_are_those_of_one_reranker(reranked_run, tmp_path):
    rows = read_rows(tmp_path, (StoredQuestion(i, t, None) for i, t in enumerate(texts_of(40))))
    encoder, stages = read_stages(reranked_run)
    found = find_pairs(encode_entries(rows, encoder, tmp_path), 2.0, tmp_path, memory=1 << 30)

    def scores(rows, model):
        return np.array(rerank_pairs(rows, encoder, model, found.parts, tmp_path, 1 << 30))

    model = stages.models[LIGHT]
    short = dataclasses.replace(model, candidates=2)
    some = dataclasses.replace(rows, is_new=np.arange(len(rows.first)) % 2 == 0)
    all_scores = [scores(*of) for of in ((rows, model), (rows, short), (some, short))]
    assert all((a != b).any() for a, b in itertools.pairwise(all_scores))


def make_index(folder, run, texts):
    entries = ((i, i, text, None) for i, text in enumerate(texts))
    return Retriever.build_in(folder, entries, run=run)


def questions_in(folder):
    return [(value, text) for value, text in Retriever.load(folder).index]


OLD, NEW = ["learn python", "cook rice"], ["LEARN python", "a new car", "Cook rice"]


def test_nothing_is_encoded_where_nothing_is_new(run, tmp_path, monkeypatch):
    make_index(tmp_path / "index", run, [*OLD, OLD[0]])
    monkeypatch.setattr(CnnEncoder, "encode", None)  # not called
    for keep in ("first", "central"):
        found = find_duplicates(OLD, incremental=tmp_path / "index", keep=keep)
        assert (len(found.pairs), len(found.groups), found.kept) == (0, 0, [])


@pytest.mark.parametrize("factory", ["Flat", "IVF3,Flat", "SQ8"])
def test_only_what_is_new_is_encoded(run, tmp_path, monkeypatch, factory):
    texts = sorted({*texts_of(150)})
    old, new = texts[:-10], texts[-10:]
    recipe = Recipe(factory, probes=1, assignments=1 + ("IVF" in factory))
    entries = ((i, f"q{i}", text, None) for i, text in enumerate(old))
    Retriever.build_in(tmp_path / "index", entries, run=run, recipe=recipe)
    Retriever.load(tmp_path / "index").add(["another"], ["q3"])
    old[3] = "another"
    expected = find_duplicates([*old, *new], run=run, max_distance=0.8)
    seen, encode = [], CnnEncoder.encode

    def note(self, given):
        seen.extend(given)
        return encode(self, given)

    monkeypatch.setattr(CnnEncoder, "encode", note)
    ids = [f"n{i}" for i in range(10)]
    found = find_duplicates(new, ids, incremental=tmp_path / "index", max_distance=0.8)
    distances = [p.distance for p in expected.pairs if max(p[:2]) >= len(old)]
    assert len(distances) > 5
    assert [p.distance for p in found.pairs] == pytest.approx(distances, abs=1e-5)
    again = old if factory == "SQ8" else []
    assert sorted(seen) == sorted([*again, *new, *new])  # compared, then added


@pytest.mark.parametrize("killed", [(CnnEncoder, "encode"), (Retriever, "add")])
def test_rows_that_another_program_added_after_a_kill_stay(run, tmp_path, monkeypatch, killed):
    index = make_index(tmp_path / "index", run, OLD)
    how = {"incremental": tmp_path / "index", "threshold": 0.9, "folder": tmp_path / "work"}
    with monkeypatch.context() as patch:
        patch.setattr(*killed, kill)
        with pytest.raises(Killed):
            find_duplicates(NEW, **how)
    index.add(["what is rust", "a new car"])
    found = find_duplicates(NEW, **how)
    expected = [*enumerate([*OLD, "what is rust", "a new car", NEW[0]]), (6, NEW[2])]
    assert questions_in(tmp_path / "index") == expected
    assert {pair[:2] for pair in found.pairs} == {(0, 4), (1, 6)}


@pytest.mark.parametrize("more", [[], ["what is rust"]])
def test_a_kill_while_rows_are_added_adds_none_twice(run, tmp_path, monkeypatch, more):
    index = make_index(tmp_path / "index", run, OLD)
    how = {"incremental": tmp_path / "index", "threshold": 0.9, "folder": tmp_path / "work"}
    monkeypatch.setattr(find, "_ADDED", 1)
    add, calls = Retriever.add, []

    def add_two(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise Killed
        return add(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Retriever, "add", add_two)
        with pytest.raises(Killed):
            find_duplicates(NEW, **how)
    if more:
        index.add(more)
    found = find_duplicates(NEW, **how)
    texts = [text for _, text in questions_in(tmp_path / "index")]
    assert texts == [*OLD, *NEW[:2], *more, NEW[2]]
    if not more:  # all that the killed call had found
        assert {pair[:2] for pair in found.pairs} == {(0, 2), (1, 4)}


def test_a_change_of_the_index_during_a_search_is_an_error(run, tmp_path, monkeypatch):
    index = make_index(tmp_path / "index", run, OLD)
    how = {"incremental": tmp_path / "index", "threshold": 0.9, "folder": tmp_path / "work"}
    search = find.search_duplicates

    def change(*args):
        index.add(["what is rust"])
        return search(*args)

    with monkeypatch.context() as patch:
        patch.setattr(find, "search_duplicates", change)
        with pytest.raises(UserError, match=r"the index was changed meanwhile.*do the same again"):
            find_duplicates(NEW, **how)
    assert len(Retriever.load(tmp_path / "index")) == 3
    find_duplicates(NEW, **how)
    assert questions_in(tmp_path / "index") == [*enumerate([*OLD, "what is rust", *NEW])]


def test_a_folder_serves_one_index_after_another(run, tmp_path):
    for name in ("i", "j"):
        make_index(tmp_path / name, run, OLD)
        how = {"incremental": tmp_path / name, "threshold": 0.9, "folder": tmp_path / "work"}
        assert len(find_duplicates(NEW, **how).pairs) == 2
        assert len(find_duplicates(NEW, **how).pairs) == 0
        assert len(Retriever.load(tmp_path / name)) == 5
