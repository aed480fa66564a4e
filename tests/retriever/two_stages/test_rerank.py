"""A search in two stages: what orders the hits, how it goes with its encoder, what explains it."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from qpr_jax.data.questions import Entry
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.load import read_encoder
from qpr_jax.errors import UserError
from qpr_jax.index.base import Hit
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking import second_stage
from qpr_jax.reranking.cross_encoder import read_cross_encoder
from qpr_jax.reranking.features import FEATURES
from qpr_jax.reranking.light import (
    STACKED,
    LightModel,
    LightReranker,
    features_of,
    read_light,
    save_light,
)
from qpr_jax.retriever import Retriever
from tests.reranking.test_cross_encoder import TINY
from tests.reranking.test_light import stump
from tests.retriever.test_folder import ROOT
from tests.retriever.two_stages.conftest import ASKED, QUESTIONS
from tests.runs import write_reranker


def expected(retriever, run, queries, k, texts=None):
    """The same, by the parts of the library."""
    statistics = Statistics.build([q for _, q in retriever.index] if texts is None else texts)
    model = read_light(run / "export" / "reranker")
    reranker = LightReranker(model, retriever.encoder, statistics)
    found = retriever.search(queries, max(k, 6), rerank=False)
    return [hits[:k] for hits in reranker.rerank(queries, found)]


@pytest.mark.parametrize("k", [1, 3, 6, 9, 10**9])
def test_the_first_hits_are_ordered_anew_and_the_rest_follows(retriever, run, k):
    one_stage = retriever.search(ASKED, k, rerank=False)
    found = retriever.search(ASKED, k)
    assert found == retriever.search(ASKED, k, rerank="light")
    assert found == expected(retriever, run, ASKED, min(k, 15))
    assert {hit.score for hits in one_stage for hit in hits} == {None}
    for hits, plain in zip(found, retriever.search(ASKED, 15, rerank=False), strict=True):
        assert {hit[:3] for hit in hits[:6]} <= {hit[:3] for hit in plain[:6]}
        scores = [hit.score for hit in hits[:6]]
        assert scores == sorted(scores, reverse=True)
        assert hits[6:] == plain[6 : len(hits)]
    assert retriever.search(ASKED, 15) != retriever.search(ASKED, 15, rerank=False)


def test_many_queries_are_searched_as_each_alone(retriever, monkeypatch):
    queries = [f"how do i cook {i}" for i in range(300)]
    together = retriever.search(queries, 4)
    assert together == [retriever.search([query], 4)[0] for query in queries]
    assert retriever.search([]) == []


def test_an_empty_index_has_no_hits(run):
    retriever = Retriever.load(run / "export")
    assert retriever.search(["rice"]) == [[]]
    retriever.add(["how to cook rice", "how to cook rye"])
    assert [hit.score is None for hit in retriever.search(["rice"])[0]] == [False, False]


@pytest.mark.parametrize("word", ["Light", "none", True, 1, "", "false"])
def test_unknown_words_are_refused(retriever, word):
    with pytest.raises(UserError, match="`rerank`: expected None, False, 'light' or 'cross_enc"):
        retriever.search(["rice"], rerank=word)


def test_a_stage_that_is_not_there(retriever, run):
    with pytest.raises(UserError, match="`rerank`: expected a cross-encoder, found none; name the"):
        retriever.search(["rice"], rerank="cross_encoder")
    shutil.rmtree(run / "export" / "reranker")
    plain = Retriever.build([*QUESTIONS.values()], run=run)
    assert plain.search(["rice"]) == plain.search(["rice"], rerank=False)
    with pytest.raises(UserError, match="with a folder reranker/, found none; train"):
        plain.search(["rice"], rerank="light")


def unit_vectors(monkeypatch):
    plain = CnnEncoder.encode

    def encode(self, questions):
        vectors = plain(self, questions)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    monkeypatch.setattr(CnnEncoder, "encode", encode)


def test_inner_products_of_unit_vectors_are_taken_for_squares(run, monkeypatch):
    unit_vectors(monkeypatch)
    texts = [*QUESTIONS.values()]
    squares = Retriever.build(texts, run=run, recipe=Recipe("Flat"))
    products = Retriever.build(texts, run=run, recipe=Recipe("Flat", "ip"))
    for query in ASKED:
        (left,), (right,) = squares.search([query], 9), products.search([query], 9)
        assert [hit.id for hit in left] == [hit.id for hit in right]
        assert [hit.score for hit in left] == pytest.approx([hit.score for hit in right])
        for one, other in zip(left, right, strict=True):
            assert one.distance == pytest.approx(2 + 2 * other.distance, abs=1e-5)
        plain = {hit.id: hit.distance for hit in products.search([query], 15, rerank=False)[0]}
        assert all(plain[hit.id] == hit.distance for hit in right)
    left, right = (r.explain(ASKED[0], id=4) for r in (squares, products))
    assert left.raw_score == pytest.approx(right.raw_score)


def test_inner_products_of_other_vectors_are_not_read(run):
    retriever = Retriever.build([*QUESTIONS.values()], run=run, recipe=Recipe("Flat", "ip"))
    assert retriever.search(ASKED) == retriever.search(ASKED, rerank=False)
    with pytest.raises(UserError, match=r"got inner products .*; index with `metric=l2`, or"):
        retriever.search(ASKED, rerank="light")


def test_it_reads_the_present_questions(retriever, run, tmp_path):
    retriever.save(tmp_path / "saved")
    other = Retriever.load(tmp_path / "saved")
    assert other.search(ASKED) == retriever.search(ASKED)
    retriever.add(["how do i cook rice in 2015", "python"], [3, 99])
    retriever.remove([1, 7])
    assert retriever.search(ASKED, 9) == expected(retriever, run, ASKED, 9)
    other.add(["rust"], [100])  # and what the other has changed
    assert other.search(ASKED, 9) == expected(other, run, ASKED, 9)
    other.compact()
    assert other.search(ASKED, 9) == expected(other, run, ASKED, 9)
    retriever.add(["another"], [101])  # in an index that another has put there
    assert retriever.search(ASKED, 9) == expected(retriever, run, ASKED, 9)
    assert Retriever.load(tmp_path / "saved").search(ASKED) == retriever.search(ASKED)


def test_explained_by_its_features(retriever):
    for query in ASKED:
        for hit in retriever.search([query], 6)[0]:
            for given in ({"id": hit.id}, {"other": hit.question}):
                parts = retriever.explain(query, **given)
                assert parts.probability == hit.score
                assert tuple(parts.features) == FEATURES
                assert parts.distance == pytest.approx(hit.distance, rel=1e-4)
        raw = [retriever.explain(query, id=h.id).raw_score for h in retriever.search([query], 6)[0]]
        assert raw == sorted(raw, reverse=True)
    far = retriever.search(ASKED[:1], 15, rerank=False)[0][-1]
    parts = retriever.explain(ASKED[0], id=far.id)
    assert parts == retriever.explain(ASKED[0], far.question)
    assert 0 < parts.probability < 1
    assert retriever.explain(ASKED[0], "a text of no question").features["distance"] > 0
    plain = retriever.explain(ASKED[0], "rice", rerank=False)
    assert plain[1:5] == (None, None, {}, None)
    for id in (400, "05", -1, True, 1.5, 2**70):
        said = f"`id`: expected the id of an indexed question, got {id!r}; use"
        with pytest.raises(UserError, match=re.escape(said)):
            retriever.explain("rice", id=id)
    with pytest.raises(UserError, match="expected strings, got NoneType"):
        retriever.explain(None, "rice")
    with pytest.raises(UserError, match="expected `other` or `id`, got none"):
        retriever.explain("rice")
    with pytest.raises(UserError, match="expected `other` or `id`, got both"):
        retriever.explain("rice", "rye", id=4)


class Backwards:
    """A cross-encoder's re-ranker, as it were: the last first."""

    candidates, lexical_candidates = 4, 0

    def __init__(self, model):
        self.model = model

    def score(self, queries, questions, distances, starts):
        return distances, np.where(np.arange(len(distances)) % 2, 0.5, np.nan)

    def explain(self, query, hits):
        return [{"score": float(i), "probability": i / 9} for i in range(len(hits))]


def test_a_cross_encoder_by_its_folder(retriever, tmp_path, monkeypatch):
    class Cross:
        identity = "a cross-encoder"

    monkeypatch.setattr(second_stage, "read_cross_encoder", lambda folder: Cross())
    monkeypatch.setattr(second_stage, "CrossReranker", Backwards)
    run, entries = tmp_path / "run", [Entry(1, None, "rice"), Entry(2, None, "rye")]
    for made in (
        Retriever.build(["rice", "rye"], run=run, cross_encoder=tmp_path / "cross"),
        Retriever.build_in(tmp_path / "in", entries, run=run, cross_encoder=tmp_path / "cross"),
    ):
        (found,), (plain,) = (made.search(["rice"], rerank=r) for r in ("cross_encoder", False))
        assert [hit.id for hit in found] == [hit.id for hit in plain[::-1]]
    retriever.save(tmp_path / "saved")
    loaded = Retriever.load(tmp_path / "saved", cross_encoder=tmp_path / "cross")
    (plain,) = loaded.search(["rice"], 6, rerank=False)
    (found,) = loaded.search(["rice"], 6, rerank="cross_encoder")
    assert [hit.id for hit in found] == [plain[i].id for i in (3, 2, 1, 0, 4, 5)]
    assert [hit.score for hit in found] == [0.5, None, 0.5, None, None, None]
    assert loaded.explain("rice", id=plain[2].id, rerank="cross_encoder").raw_score == 2
    assert loaded.search(["rice"], 6) == retriever.search(["rice"], 6)


def test_a_stacked_one_with_its_cross_encoder(run, tmp_path, caplog):
    cross = read_cross_encoder(TINY)
    identity = read_encoder(run / "export").identity
    model = LightModel(
        *(identity, 3, features_of(cross.identity), stump(len(FEATURES), 0.0)),
        *(np.array([[-1.0, 1.0], [0.1, 0.9]]), 0, cross.identity),
    )
    save_light(run / "export" / STACKED, model)
    retriever = Retriever.build([*QUESTIONS.values()], [*QUESTIONS], run=run)
    retriever.save(tmp_path / "saved")
    loaded = Retriever.load(tmp_path / "saved", cross_encoder=TINY)
    (found,) = loaded.search(["rice"], 5, rerank="cross_encoder")
    logits = cross.predict([("rice", hit.question) for hit in found[:3]])
    assert [hit.score for hit in found[:3]] == [0.9 if x > 0 else 0.1 for x in logits]
    parts = loaded.explain("rice", id=found[0].id, rerank="cross_encoder")
    assert parts.features["cross"] == pytest.approx(logits[0], abs=1e-5)
    assert loaded.second_stages.facts()[STACKED]["cross_encoder"] == cross.identity
    # Without it, of another identity: by the cross-encoder alone, which has no calibration.
    save_light(tmp_path / "saved" / "export" / STACKED, replace(model, cross_encoder="another"))
    assert caplog.text == ""
    loaded = Retriever.load(tmp_path / "saved", cross_encoder=TINY)
    assert "reranker_cross: trained with the cross-encoder another, not with" in caplog.text
    (found,) = loaded.search(["rice"], 25, rerank="cross_encoder")
    logits = cross.predict([("rice", hit.question) for hit in found])
    np.testing.assert_allclose(logits, np.sort(logits)[::-1], atol=1e-6)
    assert {hit.score for hit in found} == {None}
    parts = loaded.explain("rice", id=found[0].id, rerank="cross_encoder")
    assert (parts.probability, parts.features) == (None, {})


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_candidates_by_their_words_beside_the_nearest(run, monkeypatch, metric):
    unit_vectors(monkeypatch)
    write_reranker(run, candidates=1, lexical_candidates=2)
    retriever = Retriever.build([*QUESTIONS.values()], run=run, recipe=Recipe("Flat", metric))
    query = "cannot rye"
    (plain,) = retriever.search([query], 15, rerank=False)
    (found,) = retriever.search([query], 15)
    pool = [hit for hit in found if hit.score is not None]
    ids = [hit.id for hit in pool]
    assert {plain[0].id, 7} <= {*ids}  # how cannot i cook rye
    assert len(ids) <= 3
    assert found[len(pool) :] == [hit for hit in plain if hit.id not in ids]
    distances = {hit.id: hit.distance for hit in plain}
    assert all(hit.distance == pytest.approx(distances[hit.id], abs=1e-5) for hit in pool)
    best, far = (retriever.explain(query, id=i).features for i in (7, plain[-1].id))
    assert far["bm25_gap"] == best["bm25"] - far["bm25"]  # also beside those found by their words
    assert retriever.explain(query, id=7).probability == {h.id: h.score for h in pool}[7]
    for other in (query, "???"):  # without a word there are fewer candidates
        (found,) = retriever.search([other], 15)
        for k in range(1, 15):
            assert retriever.search([other], k)[0] == found[:k]


SEARCH = """
import sys
for name in ("jax", "lightgbm", "sklearn", "torch"):
    sys.modules[name] = None
from qpr_jax import Retriever
print(Retriever.load(sys.argv[1]).search(["how do i cook rice"]))
"""


def test_needs_no_library_of_training(retriever, tmp_path):
    retriever.save(tmp_path / "saved")
    command = [sys.executable, "-W", "error", "-c", SEARCH, str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{retriever.search(['how do i cook rice'])}\n"
    assert done.stderr == ""
    assert Hit(1, "a", 0.5).score is None
