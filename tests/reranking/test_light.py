"""The light re-ranker: its folder, its order, its probabilities."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.isotonic import IsotonicRegression

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, write_manifest
from qpr_jax.index.base import Hit
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking import light
from qpr_jax.reranking.isotonic import calibrate
from qpr_jax.reranking.light import (
    WEIGHTS,
    LightModel,
    LightReranker,
    features_of,
    rank_hits,
    read_light,
    save_light,
)
from qpr_jax.reranking.trees import Forest
from qpr_jax.reranking.word_weights import BITS


class Encoder:
    identity, extends = "an encoder", ()


class Length:
    """A feature extractor whose first feature is the length of the question; the others are 0."""

    def __init__(self, encoder, statistics, weights):
        pass

    def compute(self, queries, questions, distances, starts):
        rows = np.zeros((len(questions), len(features_of())), np.float32)
        rows[:, 0] = [*map(len, questions)]
        return rows


@pytest.fixture(autouse=True)
def _features(monkeypatch):
    monkeypatch.setattr(light, "FeatureExtractor", Length)


def stump(feature=0, threshold=3.5):
    """-1 up to the threshold, 1 above it."""
    arrays = ([feature], [threshold], [0b10], [-1.0, 1.0], [0, 1])
    types = (np.int32, np.float32, np.uint32, np.float64, np.int32)
    return Forest(*(np.array(a, t) for a, t in zip(arrays, types, strict=True)))


def model(**changes):
    calibration = np.array([[-1.0, 1.0], [0.1, 0.9]])
    return LightModel("an encoder", 3, features_of(), stump(), calibration, **changes)


def reranker(**changes):
    return LightReranker(dataclasses.replace(model(), **changes), Encoder(), Statistics.build([]))


HITS = [Hit(7, "abc", 0.1), Hit(5, "abcd", 0.2), Hit(4, "abcde", 0.3), Hit(1, "abcdefg", 0.4)]


def test_a_model_is_read_as_it_was_saved(tmp_path):
    weights = np.arange(1 << BITS, dtype=np.float32)
    saved = model(settings={"trees": 1}, word_weights=weights)
    save_light(tmp_path / "reranker", saved)
    found = read_light(tmp_path / "reranker")
    assert found.settings == {"trees": 1}
    for name in Forest._fields:
        ours, theirs = getattr(found.forest, name), getattr(saved.forest, name)
        assert ours.dtype == theirs.dtype
        assert (ours == theirs).all()
    assert (found.calibration == saved.calibration).all()
    assert (found.word_weights == saved.word_weights).all()
    rest = {"forest": None, "calibration": None, "word_weights": None}
    assert dataclasses.replace(found, **rest) == dataclasses.replace(saved, **rest)


def test_a_flipped_byte_is_refused(tmp_path):
    save_light(tmp_path / "r", model())
    data = bytearray((tmp_path / "r" / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / "r" / WEIGHTS).write_bytes(data)
    with pytest.raises(UserError, match="SHA-256"):
        read_light(tmp_path / "r")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", "qpr_jax reranker 0", "expected format"),
        ("features", ["length"], "over the features"),
        ("candidates", "50", "expected int as `candidates`"),
        ("candidates", 0, "expected 1 candidate or more"),
        ("encoder", None, "expected str as `encoder`"),
    ],
)
def test_another_manifest_is_refused(tmp_path, name, value, message):
    save_light(tmp_path / "r", model())
    facts = json.loads((tmp_path / "r" / MANIFEST).read_text())
    files = [*facts.pop("files")]
    write_manifest(tmp_path / "r", files, **facts | {name: value})
    with pytest.raises(UserError, match=message):
        read_light(tmp_path / "r")


def test_a_model_with_fewer_features_says_so_and_nothing_else(tmp_path):
    """As those from before the word weights."""
    save_light(tmp_path / "r", model())
    facts = json.loads((tmp_path / "r" / MANIFEST).read_text())
    tensors = load_file(tmp_path / "r" / WEIGHTS)
    del tensors["word_weights"]
    save_file(tensors, tmp_path / "r" / WEIGHTS)
    del facts["files"]
    write_manifest(tmp_path / "r", [WEIGHTS], **facts | {"features": facts["features"][:-2]})
    with pytest.raises(UserError, match=r"of this version, 51 columns, got 49 others; train it"):
        read_light(tmp_path / "r")
    write_manifest(tmp_path / "r", [WEIGHTS], **facts)
    with pytest.raises(UserError, match="expected `word_weights`, got none; train the run again"):
        read_light(tmp_path / "r")


@pytest.mark.parametrize(
    "points", [[[1.0, 0.0], [0.1, 0.2]], [[0.0, 1.0], [0.3, 0.2]], [[0.0], [1.5]]]
)
def test_a_calibration_that_falls_is_refused(points):
    with pytest.raises(UserError, match="ascending calibration"):
        light._check(dataclasses.replace(model(), calibration=np.array(points)), "here")


def test_the_first_hits_are_ordered_by_score_and_the_others_follow():
    (found,) = reranker().rerank(["q"], [HITS])
    assert [(hit.id, hit.score) for hit in found] == [
        *((5, pytest.approx(0.9)), (4, pytest.approx(0.9)), (7, pytest.approx(0.1)), (1, None))
    ]
    assert [hit.distance for hit in found] == [0.2, 0.3, 0.1, 0.4]


def test_queries_do_not_mix_and_may_have_no_hits():
    found = reranker().rerank(["a", "b", "c"], [HITS[:2], [], HITS[2:]])
    assert [[hit.id for hit in hits] for hits in found] == [[5, 7], [], [4, 1]]


def test_shuffled_hits_have_the_same_order():
    hits = [Hit(i, "abcd", 0.5) for i in range(20)] + HITS
    whole = reranker(candidates=30)
    (expected,) = whole.rerank(["q"], [hits])
    for seed in range(5):
        mixed = [hits[i] for i in np.random.default_rng(seed).permutation(len(hits))]
        assert whole.rerank(["q"], [mixed]) == [expected]


def test_ties_and_scores_that_are_no_numbers_have_one_order():
    scores = np.array([np.nan, 1.0, np.inf, np.nan, np.inf, 1.0, -np.inf])
    distances = np.array([0.2, 0.5, 0.4, 0.1, 0.4, 0.3, 0.0], np.float32)
    for kept, expected in (
        (np.arange(7), [2, 4, 5, 1, 6, 3, 0]),
        (np.array([0, 1, 3]), [1, 3, 0]),
        (np.array([4, 2]), [2, 4]),
    ):
        for seed in range(5):
            at = kept[np.random.default_rng(seed).permutation(len(kept))]
            found = rank_hits(scores[at], distances[at], at, np.array([0, len(at)]))
            assert at[found].tolist() == expected
    assert rank_hits(*np.zeros((3, 0)), np.array([0])).tolist() == []
    assert rank_hits(*np.zeros((3, 2)), np.array([0, 0, 1, 1, 2])).tolist() == [0, 1]


def test_explain_gives_features_score_and_probability():
    parts = reranker().explain("q", HITS)
    assert [*parts[0]] == [*features_of(), "score", "probability"]
    assert [(p["score"], p["probability"]) for p in parts] == [
        *((-1, pytest.approx(0.1)), *((1, pytest.approx(0.9)),) * 3)
    ]


def test_another_encoder_is_refused():
    with pytest.raises(UserError, match="expected a re-ranker of the encoder"):
        reranker(encoder="another")


class Scorer:
    identity = "a cross-encoder"

    def predict(self, pairs):
        return np.array([-len(question) for _, question in pairs], np.float32)


def test_a_stacked_model_reads_the_logit():
    stacked = dataclasses.replace(
        model(),
        features=features_of("a cross-encoder"),
        cross_encoder="a cross-encoder",
        forest=stump(len(features_of()), -3.5),
    )
    with pytest.raises(UserError, match="expected the cross-encoder"):
        LightReranker(stacked, Encoder(), Statistics.build([]))
    found = LightReranker(stacked, Encoder(), Statistics.build([]), Scorer()).rerank(["q"], [HITS])
    assert [hit.id for hit in found[0]] == [7, 5, 4, 1]


def test_calibration_is_isotonic():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=500)
    labels = rng.random(500) < 1 / (1 + np.exp(-2 * scores))
    made = dataclasses.replace(model(), calibration=calibrate(scores, labels))
    light._check(made, "here")
    found = made.probabilities(np.linspace(-5, 5, 100))
    assert (np.diff(found) >= 0).all()
    assert found[0] < 0.2
    assert found[-1] > 0.8
    assert np.mean(made.probabilities(scores)) == pytest.approx(labels.mean(), abs=1e-6)


def test_calibration_is_that_of_scikit_learn():
    """Of scores that repeat, counted by weights, some of them 0."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 90, 400) / 7
    labels, weights = rng.random(400) < scores / 13, rng.integers(0, 3, 400).astype(float)
    expected = IsotonicRegression(out_of_bounds="clip").fit(scores, labels, weights)
    places, values = calibrate(scores, labels, weights)
    assert places.tolist() == expected.X_thresholds_.tolist()
    np.testing.assert_allclose(values, expected.y_thresholds_, rtol=1e-12, atol=1e-12)
