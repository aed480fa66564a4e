"""The probability of pairs that a run fits."""

from types import SimpleNamespace

import numpy as np
import pytest

from qpr_jax.data.splits import TEST, VALIDATION
from qpr_jax.reranking.calibration import read_calibration
from qpr_jax.reranking.light import read_light
from qpr_jax.training.pair_calibration import (
    SHARE,
    calibrate_pairs,
    labeled_pairs,
    near_pairs,
    share_weights,
)


def made_up(*, labels, count=3000, seed=0):
    """Questions on a line, in clusters of two that lie close together; pairs of near ones."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(count // 2), 2)
    split_of = np.repeat(rng.choice(3, count // 2, p=[0.4, 0.3, 0.3]), 2)
    places = np.repeat(rng.uniform(0, count / 20, count // 2), 2) + rng.normal(0, 0.05, count)
    same = np.arange(count).reshape(-1, 2)
    near = np.stack([np.argsort(places)[:-1], np.argsort(places)[1:]], axis=1)
    pairs = np.concatenate([same, near]) if labels else same
    duplicate = clusters[pairs[:, 0]] == clusters[pairs[:, 1]]
    questions = [str(i) for i in range(count)]
    held_out = {"validation": VALIDATION, "test": TEST}
    of_split = {name: same[split_of[same[:, 0]] == split] for name, split in held_out.items()}
    data = SimpleNamespace(questions=questions, pairs=pairs, is_duplicate=duplicate)
    splits = SimpleNamespace(split_of=split_of, pairs=of_split)
    vectors = np.stack([places, np.zeros(count)], axis=1).astype(np.float32)
    return SimpleNamespace(data=data, clusters=clusters, splits=splits), vectors


@pytest.mark.parametrize("labels", [True, False])
def test_nothing_is_learned_from_test_questions(labels):
    dataset, vectors = made_up(labels=labels)
    split_of = dataset.splits.split_of
    near, same, reach = near_pairs(dataset, vectors)
    fitted, truth = labeled_pairs(dataset, "validation")
    tested, _ = labeled_pairs(dataset, "test")
    for pairs in (near, fitted):
        of_pairs = split_of[pairs]
        assert (of_pairs == VALIDATION).any(axis=1).all()
        assert (of_pairs != TEST).all()
    assert (split_of[tested] == TEST).any(axis=1).all()
    assert 0 < same.mean() < 0.1
    within = (abs(vectors[:200, :1] - vectors[:, 0]) ** 2 <= reach).sum(axis=1) - 1
    assert within.mean() == pytest.approx(20, rel=0.2)
    assert np.average(truth, weights=share_weights(truth)) == pytest.approx(SHARE)
    assert share_weights(truth).mean() == pytest.approx(1)


def test_probabilities_fit_the_labels_of_test_pairs():
    dataset, vectors = made_up(labels=True, count=6000, seed=1)
    known = calibrate_pairs(dataset, SimpleNamespace(identity="e"), vectors, None)
    assert (known.encoder, known.reranker) == ("e", "")
    scores = known.settings["test"]
    assert scores["base_rate"] == pytest.approx(SHARE)
    assert scores["ece"] < 0.06
    assert scores["brier"] < scores["base_brier"]


def test_a_run_has_a_calibration_with_its_reranker(finished):
    workdir, report = finished
    known = read_calibration(workdir / "export" / "calibration")
    assert known.encoder == report["encoder"]
    assert known.reranker == read_light(workdir / "export" / "reranker").identity
    assert report["calibration"]["reach"] == known.reach
    assert "## Probabilities of pairs" in (workdir / "report.md").read_text()


def test_a_run_without_clusters_has_none():
    dataset = SimpleNamespace(splits=SimpleNamespace(pairs={"validation": []}))
    assert calibrate_pairs(dataset, SimpleNamespace(), np.zeros((0, 2)), None) is None
