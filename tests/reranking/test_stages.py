"""The second stages of an encoder, over a store in memory."""

import dataclasses
import logging

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.base import Question
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.recipe import Recipe
from qpr_jax.reranking.base import TextLists
from qpr_jax.reranking.calibration import CALIBRATION, save_calibration
from qpr_jax.reranking.cross_encoder import read_cross_encoder
from qpr_jax.reranking.features import FEATURES
from qpr_jax.reranking.light import LIGHT, STACKED, LightReranker, save_light
from qpr_jax.reranking.stages import Stages
from qpr_jax.retriever import Retriever
from tests.refused import check_refused
from tests.reranking.models import WordEncoder, column, light_model, network, pair_calibration
from tests.reranking.test_cross_encoder import TINY

TEXTS = [
    f"what {verb} {thing}"
    for verb in ("is", "is not", "costs")
    for thing in ("a car", "an automobile", "the price", "rice", "a car of 2015")
]


def store_of(texts=TEXTS, metric="l2", encoder=None):
    """A store in memory."""
    encoder = encoder or WordEncoder()
    return FolderStore.create(
        None,
        [Question(i, text) for i, text in enumerate(texts)],
        encoder.encode,
        Recipe(metric=metric),
        encoder=encoder.identity,
        dimension=5,
    )


class LongEncoder(WordEncoder):
    normalize = False

    def encode(self, texts):
        return 3 * super().encode(texts)


def stages(**changes) -> Stages:
    return Stages(WordEncoder(), light_model(candidates=6), **changes)


def test_the_words_of_a_store():
    light, none = stages(), Stages(WordEncoder())
    for store in (store_of(), store_of(metric="ip")):
        assert light.words(store) == ["light", False]
        assert none.words(store) == [None, False]
        assert light.choose("light", store) == "light"
        assert light.choose(False, store) is False
    with_cross = stages(cross_encoder=read_cross_encoder(TINY))
    assert with_cross.words(store_of()) == ["light", False, "cross_encoder"]
    products = store_of(metric="ip", encoder=LongEncoder())
    long = Stages(LongEncoder(), light_model())
    assert long.words(products) == [None, False]
    assert long.choose("light", store_of()) == "light"
    unknown = ("Light", "none", True, 1, "")
    check_refused(
        Stages.choose,
        *((light, word, store_of(), "None, False, 'light' or") for word in unknown),
        (light, "cross_encoder", store_of(), "expected a cross-encoder, found none"),
        (none, "light", store_of(), "with a folder reranker/"),
        (long, "light", products, "inner products of vectors of other lengths"),
    )


def test_explained_by_the_features_among_the_hits():
    known, store = stages(), store_of()
    for query in ("what is a car", "what is rice like", ""):
        (hits,) = store.search(WordEncoder().encode([query]), 9)
        (found,) = known.reranker(None, store).rerank([query], [hits])
        for hit in found[:6]:
            for given in ({"id": hit.id}, {"other": hit.question}):
                parts = known.explain(None, store, query, **given)
                assert parts.score is None
                assert parts.distance == pytest.approx(hit.distance, abs=1e-6)
                assert tuple(parts.features) == FEATURES
        far = known.explain(None, store, query, id=found[-1].id)  # takes the place of the farthest
        assert far == known.explain(None, store, query, found[-1].question)
    parts = known.explain(None, store, "what is 5", "a text of no question")
    assert parts.features["distance"] == pytest.approx(parts.distance, abs=1e-6)
    assert [word for word, _ in parts.differences.text_words] == ["5", "is", "what"]
    assert Stages(WordEncoder()).explain(None, store, "what", "rice")[1:4] == (None, None, {})
    assert known.explain(None, store_of([]), "what is rice", "rice").raw_score is not None
    check_refused(
        lambda given: known.explain(None, store, "rice", **given),
        *(({"id": 400}, "indexed question"), ({}, "none"), ({"other": 5}, "strings")),
    )


SHARED = "Thank you for your help."
FORMATTED = [
    *(f"<p>{text}</p> {SHARED}" for text in TEXTS[:7]),
    "what is &amp;lt;b&amp;gt; rice&amp;lt;/b&amp;gt;",  # twice cleaned, it would be another text
    *TEXTS[8:],
]


@pytest.mark.parametrize("vectors", ["float32", "float16"])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_search_and_explain_give_the_same_numbers(metric, vectors, monkeypatch):
    model = light_model(candidates=6)
    known = Stages(WordEncoder(), model, calibration=pair_calibration(light=model))
    recipe = Recipe(metric=metric, vectors=vectors)
    store = Retriever.build(FORMATTED, encoder=WordEncoder(), recipe=recipe).store
    assert store.shared
    retriever = Retriever(WordEncoder(), store, known)
    ranked, score_copies = [], LightReranker.score_copies

    def kept(self, lists):
        ranked.append(score_copies(self, lists))
        return ranked[-1]

    monkeypatch.setattr(LightReranker, "score_copies", kept)
    for query in (f"<i>what is</i> a car {SHARED}", FORMATTED[7], "what is rice"):
        ranked.clear()
        hits = [*retriever.search([query], k=6)[0]]
        raw = sorted(ranked[0][1].tolist(), reverse=True)
        for hit, score in zip(hits, raw, strict=True):
            for given in ({"id": hit.id}, {"other": hit.question}):
                parts = retriever.explain(query, **given)
                assert parts[:3] == (hit.distance, score, hit.score)
                plain = retriever.explain(query, **given, rerank=False)
                assert plain[:3] == (hit.distance, None, hit.score)


def test_a_score_is_the_same_whatever_else_there_is():
    model = light_model(candidates=6)
    calibration = pair_calibration(light=model)
    known = Stages(WordEncoder(), model, calibration=calibration)
    query, scores = "what is rice", []
    for texts in (TEXTS, TEXTS[3:5], [*reversed(TEXTS)]):
        for store in (store_of(texts), store_of(texts, metric="ip")):
            hits = store.search(WordEncoder().encode([query]), 20)
            (found,) = known.score_hits(store, [query], hits)
            assert [hit.score for hit in found if hit.question == query] == [1.0]
            scores += [hit.score for hit in found if hit.question == TEXTS[4]]
            again = known.explain(None, store, query, TEXTS[4])
            assert again.score == pytest.approx(scores[-1], rel=1e-5)
    assert 0 < scores[0] < 1
    assert scores == pytest.approx([scores[0]] * 6)
    long = Stages(LongEncoder(), calibration=pair_calibration())
    products = store_of(metric="ip", encoder=LongEncoder())
    assert long.score_hits(products, [query], hits) == hits
    assert known.require_calibration() is calibration
    assert known.calibration_facts() == {"words": True, "reach": 4.0}
    assert stages().calibration_facts() is None
    with pytest.raises(UserError, match=r"no calibration.* `qpr calibrate`, or .*open_student"):
        stages().require_calibration()


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_a_calibration_that_orders_adds_its_logit_to_the_score_of_a_hit(metric):
    model, query = light_model(candidates=6), "what costs 5"
    fitted = pair_calibration(light=model, order=2.0)
    known, store = Stages(WordEncoder(), model, calibration=fitted), store_of(metric=metric)
    hits = store.search(WordEncoder().encode([query]), 6)
    (found,), lists = known.reranker(None, store).rerank([query], hits), TextLists.of([query], hits)
    added = known.reranker(None, store).score(lists)[1]
    known.calibration = dataclasses.replace(fitted, order=0.0)
    alone = known.reranker(None, store).score(lists)[1]
    scores = np.array([hit.score for hit in known.score_hits(store, [query], hits)[0]])
    logits = np.log(np.maximum(scores, 0.01) / (1 - np.maximum(scores, 0.01)))
    np.testing.assert_allclose(added - alone, 2 * logits, atol=1e-3)
    assert [hit.id for hit in found] == [hits[0][i].id for i in np.argsort(-added, kind="stable")]


TRIPLES = [  # a query, the same, and something else
    ("pay 3 bills at once", "how to pay 3 bills together", "pay 5 bills at once"),
    ("Can I cancel my order?", "Is it possible to cancel an order?", "Can I not cancel my order?"),
    ("Can I return shoes?", "Is it possible to return shoes?", "Can't I return shoes?"),
    ("Do I need a visa for Spain?", "Is a visa necessary for Spain?", "Do I not need a visa?"),
]


def test_the_packaged_re_ranker_puts_the_same_meaning_above_the_opposite():
    found = Retriever.build(
        [text for triple in TRIPLES for text in triple[1:]], encoder="open_student"
    )
    for query, same, other in TRIPLES:
        order = [hit.question for hit in found.search(query, k=8)[0]]
        assert order.index(same) < order.index(other)


@pytest.fixture
def folder(tmp_path):
    """The folder of an encoder with a re-ranker and a calibration of both."""
    model = light_model(candidates=6)
    facts = {"questions": {"all": 7, "curve": []}}
    known = pair_calibration(light=model, settings=facts)
    Stages(WordEncoder(), model, calibration=known).save(tmp_path / "encoder")
    return tmp_path / "encoder"


def test_they_are_read_as_they_were_saved(folder, tmp_path):
    found = Stages.read(folder, WordEncoder())
    assert found.facts() == {LIGHT: {"candidates": 6, "features": len(FEATURES)}}
    assert found.calibration_facts() == {"words": True, "reach": 4.0, "questions": {"all": 7}}
    found.save(tmp_path / "copy")
    for path in folder.glob("*/*"):
        assert (tmp_path / "copy" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_those_of_another_encoder_or_re_ranker_are_refused(folder):
    class Other(WordEncoder):
        identity = "another"

    check_refused(Stages.read, (folder, Other(), "of the encoder another"))
    save_light(folder / LIGHT, light_model(network=network(1)))
    said = "expected a calibration of the re-ranker"
    check_refused(Stages.read, (folder, WordEncoder(), said))
    save_calibration(folder / CALIBRATION, pair_calibration())
    assert Stages.read(folder, WordEncoder()).calibration.reranker == ""
    (folder / LIGHT).rename(folder / STACKED)
    check_refused(Stages.read, (folder, WordEncoder(), "belongs in reranker/"))
    (folder / LIGHT).write_text("")
    check_refused(Stages.read, (folder, WordEncoder(), "."))


def test_a_stacked_one_with_its_cross_encoder(folder, caplog):
    cross, store, query = read_cross_encoder(TINY), store_of(), "how is rice"
    logit = column("cross", [*FEATURES, "cross"])
    model = light_model(cross_encoder=cross.identity, network=logit)
    save_light(folder / STACKED, model)
    found = Stages.read(folder, WordEncoder(), TINY)
    assert "another cross-encoder" not in caplog.text
    assert found.facts()[STACKED]["cross_encoder"] == cross.identity
    (hits,) = store.search(WordEncoder().encode([query]), 5)
    (ordered,) = found.reranker("cross_encoder", store).rerank([query], [hits])
    logits = cross.predict([(query, hit.question) for hit in ordered[:3]])
    assert (np.diff(logits) <= 0).all()
    parts = found.explain("cross_encoder", store, query, id=ordered[0].id)
    assert parts.features["cross"] == pytest.approx(logits[0], abs=1e-5)
    # With another cross-encoder that one is used alone.
    save_light(folder / STACKED, dataclasses.replace(model, cross_encoder="another"))
    with caplog.at_level(logging.WARNING):
        found = Stages.read(folder, WordEncoder(), TINY)
    assert "trained with another cross-encoder" in caplog.text
    parts = found.explain("cross_encoder", store, query, id=0)
    assert parts.features == {}
