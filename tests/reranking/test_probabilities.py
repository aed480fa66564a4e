"""The probability that two texts mean the same: of the texts alone, and its fit to labels."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from qpr_jax.data.pairs import QuestionPairs
from qpr_jax.errors import UserError
from qpr_jax.reranking.base import TextLists
from qpr_jax.reranking.calibration import calibrate, threshold_of_precision
from qpr_jax.reranking.light import LightReranker
from qpr_jax.reranking.pairs import PairFeatures
from qpr_jax.reranking.recalibration import fit_pairs, recalibrate, rescale
from tests.reranking.models import WORDS, WordEncoder, light_model, pair_calibration

MODEL = light_model()
FEATURES = PairFeatures(LightReranker(MODEL, WordEncoder()).extractor)
CALIBRATION = pair_calibration(light=MODEL)
TEXTS = st.lists(st.sampled_from([*WORDS, "rice", "not"]), max_size=5).map(
    lambda words: " ".join(words).strip()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.integers(0, 9))
def test_a_score_depends_on_the_two_texts_alone(texts, seed):
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(len(texts), 1)
    distances = rng.uniform(0, 2, len(first)).astype(np.float32)
    scores = FEATURES.score_pairs(CALIBRATION, texts, first, second, distances)
    assert ((scores > 0) & (scores < 1)).all()
    order = rng.permutation(len(first))
    mixed = FEATURES.score_pairs(CALIBRATION, texts, second[order], first[order], distances[order])
    np.testing.assert_allclose(mixed, scores[order], rtol=1e-5)
    for i in range(len(first)):
        query, hits = texts[first[i]], [texts[second[i]], *texts]
        near = np.append(distances[i], np.ones(len(texts), np.float32)).astype(np.float32)
        found = FEATURES.score_hits(
            CALIBRATION, TextLists([query], hits, near, np.array([0, len(hits)]))
        )
        np.testing.assert_allclose(found[0], scores[i], rtol=1e-5)
        assert found[1 + first[i]] == 1  # a hit with the text of the query


def by_distance(distances):
    texts = [str(i) for i in range(1 + len(distances))]
    second = np.arange(1, len(texts))
    return PairFeatures().of_pairs(texts, 0 * second, second, np.asarray(distances, np.float64))


def test_isotonic_regression_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 90, 400) / 7  # they repeat
    labels = rng.random(400) < scores / 13
    expected = IsotonicRegression(out_of_bounds="clip").fit(scores, labels)
    places, values = calibrate(scores, labels)
    assert places.tolist() == expected.X_thresholds_.tolist()
    np.testing.assert_allclose(values, expected.y_thresholds_, rtol=1e-12, atol=1e-12)


def test_the_lowest_threshold_with_a_mean_probability():
    p = np.array([0.5, 1.0, 0.8, 0.5, 0.1])
    assert threshold_of_precision(p, 0.9) == 0.8
    assert threshold_of_precision(p, 0.7) == 0.5  # both pairs of .5 are found together
    assert threshold_of_precision(p, 0.1) == 0.1
    for few in (p[2:], p[:0]):
        with pytest.raises(UserError, match="mean probability"):
            threshold_of_precision(few, 0.9)


def test_labels_give_an_order_and_weighted_labels_a_scale():
    rng = np.random.default_rng(0)
    distances = rng.uniform(0, 3, 4000)
    logits = 3 - 4 * distances
    features = by_distance(distances)
    fitted = fit_pairs("e", features, rng.random(4000) < 1 / (1 + np.exp(-logits)), reach=2.0)
    assert abs(fitted.probabilities(features) - 1 / (1 + np.exp(-logits))).mean() < 0.02
    labels = rng.random(4000) < 1 / (1 + np.exp(-logits / 2))
    weights = np.where(labels, 0.1 / labels.mean(), 0.9 / (~labels).mean())
    scaled = rescale(fitted, features, labels, weights)
    assert np.average(scaled.probabilities(features), weights=weights) == pytest.approx(
        0.1, abs=0.01
    )
    probabilities = scaled.probabilities(features)
    order = np.lexsort((probabilities, fitted.probabilities(features)))
    assert (np.diff(probabilities[order]) >= 0).all()


def verdicts(labels, weights=None) -> QuestionPairs:
    ids = np.arange(2 * len(labels))
    texts = [*map(str, ids)]
    return QuestionPairs(texts, ids, ids.reshape(-1, 2), labels, {}, weights=weights)


def test_verdicts_correct_a_shift_and_replace_those_before():
    rng = np.random.default_rng(0)
    features, old = by_distance(rng.uniform(0, 4, 200)), pair_calibration()
    true = 1 / (1 + np.exp(2 - old.logits(features)))
    given = verdicts(rng.random(200) < true)
    new, facts = recalibrate("an encoder", old, given, features)
    assert abs(new.probabilities(features) - true).mean() < 0.06
    assert facts["verdicts"] == 200
    assert facts["after"]["ece"] < facts["before"]["ece"] / 2
    assert facts["after"]["brier"] < facts["before"]["brier"]
    again, _ = recalibrate("an encoder", new, given, features)
    assert (again.slope, again.shift) == (new.slope, new.shift) != (old.slope, old.shift)


def test_a_verdict_counts_as_many_pairs_as_it_stands_for():
    labels = np.arange(40) % 2 == 0
    given, features = verdicts(labels, np.where(labels, 1.0, 9.0)), by_distance(np.full(40, 2.0))
    new, _ = recalibrate("an encoder", pair_calibration(), given, features)
    assert new.probabilities(features[:1]) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    "labels", [np.ones(30, bool), np.zeros(30, bool), np.arange(10) % 2 == 0], ids=str
)
def test_too_few_verdicts_or_all_alike_are_refused(labels):
    with pytest.raises(UserError, match="expected 20 verdicts or more, of both kinds"):
        recalibrate("e", None, verdicts(labels), by_distance(np.arange(len(labels))))


@settings(max_examples=30, deadline=None)
@given(st.floats(min_value=1e-300, max_value=1e308), st.integers(0, 39))
@example(1e308, 0)
def test_any_weights_give_a_calibration_or_a_user_error(weight, place):
    weights = np.ones(40)
    weights[place:] = weight
    features = by_distance(np.linspace(0, 4, 40))
    try:
        new, _ = recalibrate("e", None, verdicts(np.arange(40) % 3 == 0, weights), features)
    except UserError:
        assert weight > 1e6
    else:
        assert np.isfinite(new.probabilities(features)).all()
