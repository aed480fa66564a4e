"""The model of pairs of an encoder, over a store in memory: order, scores, explanations, files."""

import dataclasses
import functools

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from qpr_jax.errors import UserError
from qpr_jax.index.folder import FolderStore
from qpr_jax.index.protocol import IndexConfig, Question
from qpr_jax.locations import PAIR_MODEL, model_facts, read_pair_model, save_pair_model
from qpr_jax.pair_model.cross_encoder import read_cross_encoder
from qpr_jax.pair_model.fitting import calibrate
from qpr_jax.pair_model.hits import score_hits
from qpr_jax.pair_model.plain import general_model
from qpr_jax.pair_model.words import pair_features
from qpr_jax.retriever import Retriever
from tests.pair_model.models import WordEncoder, plain_model, words_model
from tests.pair_model.test_cross_encoder import TINY
from tests.refused import check_refused

TEXTS = [
    f"what {verb} {thing}"
    for verb in ("is", "is not", "costs")
    for thing in ("a car", "an automobile", "the price", "rice", "a car of 2015")
]
SHARED = "Thank you for your help."
FORMATTED = [
    *(f"<p>{text}</p> {SHARED}" for text in TEXTS[:7]),
    "what is &amp;lt;b&amp;gt; rice&amp;lt;/b&amp;gt;",  # twice cleaned, it would be another text
    *TEXTS[8:],
]
MODELS = [plain_model(), words_model()]


def test_logits_of_a_words_model_are_moved():
    network = words_model().network
    network = network._replace(shift=np.array([0.7], np.float32))
    model = words_model(network=network)
    features = np.random.default_rng(0).normal(size=(9, len(network.mean))).astype(np.float32)
    moved = model.rescaled(0.5, 0.25, {"labels": 9})
    expected = 0.5 * network.logits(features) + 0.25
    np.testing.assert_allclose(moved.network.logits(features), expected, rtol=1e-5)
    assert moved.settings == {"labels": 9}


def test_a_distance_that_rounding_makes_negative_is_none():
    assert not pair_features(np.array([-1e-7]), np.zeros((1, 31), np.float32)).any()


class LongEncoder(WordEncoder):
    normalize = False

    def encode(self, texts):
        return 3 * super().encode(texts)


def store_of(texts=TEXTS, metric="l2", encoder=None):
    """A store in memory."""
    encoder = encoder or WordEncoder()
    return FolderStore.create(
        None,
        [Question(i, text) for i, text in enumerate(texts)],
        encoder.encode,
        IndexConfig(metric=metric),
        encoder=encoder.fingerprint,
        dimension=5,
    )


def test_what_orders_hits():
    cross = read_cross_encoder(TINY)
    model = plain_model()
    retriever = Retriever(WordEncoder(), store_of(), model, cross_encoder=cross)
    assert retriever.ordering(None) is model
    assert retriever.ordering(False) is None
    assert retriever.ordering("cross_encoder") is cross
    products = store_of(metric="ip", encoder=LongEncoder())
    assert Retriever(LongEncoder(), products, model).ordering(None) is None
    assert Retriever(WordEncoder(), store_of(metric="ip"), model).ordering(None) is model
    alone = Retriever(WordEncoder(), store_of())
    assert alone.ordering(None) == general_model(WordEncoder())
    check_refused(
        Retriever.ordering,
        *((retriever, word, "None, False or 'cross_encoder'") for word in ("light", True, 1, "")),
        (alone, "cross_encoder", "expected a cross-encoder, found none"),
    )


@pytest.mark.parametrize("vectors", ["float32", "float16"])
@pytest.mark.parametrize("metric", ["l2", "ip"])
@pytest.mark.parametrize("model", MODELS, ids=["plain", "words"])
def test_search_and_explain_give_one_score_and_hits_are_sorted_by_it(model, metric, vectors):
    index_config = IndexConfig(metric=metric, vectors=vectors)
    store = Retriever.build(FORMATTED, encoder=WordEncoder(), index_config=index_config).store
    assert store.cleaner.shared
    retriever = Retriever(WordEncoder(), store, model)
    for query in (f"<i>what is</i> a car {SHARED}", FORMATTED[7], "what is rice"):
        hits = [*retriever.search([query], k=6)[0]]
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            for other in ({"id": hit.id}, {"other": hit.question}):
                parts = retriever.explain(query, **other)
                assert parts[:2] == pytest.approx((hit.distance, hit.score), abs=2e-3)
                assert retriever.explain(query, **other, rerank=False)[:2] == (parts[0], None)
    parts = retriever.explain("is it 5", "is it not 6")
    assert parts.guards == ("numbers differ", "negation on one side")
    assert parts.differences.text_numbers == ("5",)
    check_refused(
        lambda other: retriever.explain("rice", **other),
        *(({"id": 400}, "indexed question"), ({}, "none"), ({"other": 5}, "strings")),
    )


@pytest.mark.parametrize("model", MODELS, ids=["plain", "words"])
def test_a_score_is_the_same_whatever_else_there_is(model):
    query, scores = "what is rice", []
    for texts in (TEXTS, TEXTS[3:5], [*reversed(TEXTS)]):
        for store in (store_of(texts), store_of(texts, metric="ip")):
            hits = store.search(WordEncoder().encode([query]), 20)
            (found,) = score_hits(model, WordEncoder(), store, [query], hits)
            assert (found[0].question, found[0].score) == (query, 1.0)
            scores += [hit.score for hit in found if hit.question == TEXTS[4]]
    assert 0 < scores[0] < 1
    assert scores == pytest.approx([scores[0]] * 6, rel=1e-4)


def test_a_cross_encoder_orders_and_scores():
    cross, query = read_cross_encoder(TINY), "how is rice"
    retriever = Retriever(WordEncoder(), store_of(), plain_model(), cross_encoder=TINY)
    hits = retriever.search(query, 4, rerank="cross_encoder")[0]
    logits = cross.predict([(query, hit.question) for hit in hits])
    assert (np.diff(logits) <= 1e-5).all()
    expected = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-4)
    # The first hit is the best of all that it orders, whatever is asked for.
    search = functools.partial(retriever.search, rerank="cross_encoder")
    assert search(query, 1)[0][0].id == search(query, len(TEXTS))[0][0].id
    points = np.array([[-1.0, 0.0, 1.0], [0.2, 0.2, 0.9]])
    calibrated = dataclasses.replace(cross, calibration=points)
    found = calibrated.logits(["a"] * 2, ["b", "c"], np.zeros(2))
    raw = cross.predict([("a", "b"), ("a", "c")])
    assert (found[0] > found[1]) == (raw[0] > raw[1])


@pytest.mark.parametrize("model", MODELS, ids=["plain", "words"])
def test_it_is_read_as_it_was_saved_and_only_with_its_encoder(model, tmp_path):
    class Other(WordEncoder):
        fingerprint = "another"

    assert read_pair_model(tmp_path, WordEncoder()) is None
    save_pair_model(tmp_path, model)
    found = read_pair_model(tmp_path, WordEncoder())
    texts = ["what is rice", "car"], ["rice", "a car"], np.array([0.3, 1.2])
    assert found.logits(*texts).tobytes() == model.logits(*texts).tobytes()
    assert model_facts(found)["depth"] == model.depth
    save_pair_model(tmp_path / "copy", found)
    for path in (tmp_path / PAIR_MODEL).iterdir():
        assert (tmp_path / "copy" / PAIR_MODEL / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(UserError, match="a model of pairs of the encoder another, got one of"):
        read_pair_model(tmp_path, Other())
    for path in (tmp_path / PAIR_MODEL).iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        with pytest.raises(UserError):
            read_pair_model(tmp_path, WordEncoder())
        path.write_bytes(whole)


def test_isotonic_regression_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 90, 400) / 7  # they repeat
    labels = rng.random(400) < scores / 13
    expected = IsotonicRegression(out_of_bounds="clip").fit(scores, labels)
    places, values = calibrate(scores, labels)
    assert places.tolist() == expected.X_thresholds_.tolist()
    np.testing.assert_allclose(values, expected.y_thresholds_, rtol=1e-12, atol=1e-12)


def test_hits_by_distance_stay_so_where_scores_only_leave_some_out():
    pairs, hits = (4.0, 0.0, *[0.0] * 8, -1.0), (4.0, 0.0, -9.0, *[0.0] * 6, -1.0)
    model = dataclasses.replace(plain_model(), pairs=pairs, hits=hits)
    retriever = Retriever(WordEncoder(), store_of(["car 5", "car 6", "car 7", "a car"]), model)
    found = retriever.search("car 8", 4, rerank=False, min_score=0)[0]
    distances = [hit.distance for hit in found]
    assert distances == sorted(distances)
    assert all(hit.score is not None for hit in found)
