"""The training of a cross-encoder: its pairs, its batches, its loss, and a run that is stopped."""

import itertools
import os
import pathlib
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from qpr_jax.errors import Interrupted, UserError
from qpr_jax.evaluation.retrieval import first_scores
from qpr_jax.files import read_json
from qpr_jax.locations import read_encoder
from qpr_jax.models import bert
from qpr_jax.pair_model.cross_encoder import from_encoder, read_cross_encoder, save_cross_encoder
from qpr_jax.training import cross_encoder_job
from qpr_jax.training.config import load_config, override
from qpr_jax.training.cross_encoder_job import (
    Validation,
    batches_by_length,
    draw_pairs,
    find_hits,
    find_negatives,
    make_batches,
    make_cross_step,
    rerank_scores,
)
from qpr_jax.training.metrics import read_json_lines
from qpr_jax.training.run import train_and_evaluate
from qpr_jax.training.sources import SOURCES
from tests.encoders.examples import TINY
from tests.refused import check_refused

CLUSTERS = np.array([0, 0, 1, 1, 1, -1, 2, 2, -1, 3])  # 3 has lost its other question
HITS = np.array([[2, 5, 3], [2, -1, -1], [0, 1, 6], [7, 8, 9], [0, 1, 5], *[[-1] * 3] * 4, [0] * 3])
HITS[6], HITS[7] = [0, 1, 2], [3, 4, 5]


def config_of(**changes):
    config = load_config("quora_cross_encoder:smoke")
    fixed = {
        "data.source": "synthetic",
        "data.max_rows": 100,
        "data.held_out_pairs": 30,
        "encoder.pretrained": str(TINY),
        "encoder.compute_dtype": "float32",
        "cross_encoder.first_stage": str(TINY),
        "batch_size": 16,
        "max_steps": 6,
        "checkpoint_every": 2,
        "optimizer.learning_rate": 1e-3,
    }
    return override(config, fixed | changes)


@pytest.fixture(scope="module", autouse=True)
def one_width():
    """Each takes a second to compile."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (cross_encoder_job, bert):
            patch.setattr(module, "choose_widths", lambda most: sorted({min(64, most), most}))
        yield


def test_a_round_has_each_cluster_once_and_all_labeled_pairs():
    labeled = np.array([[5, 6], [8, 9]])
    rows, labels = draw_pairs(CLUSTERS, HITS, labeled, count=300, negatives=2, seed=0)
    assert (rows.dtype, labels.dtype) == (np.int32, np.float32)
    fewer, _ = draw_pairs(CLUSTERS, HITS, labeled, count=12, negatives=2, seed=0)
    np.testing.assert_array_equal(rows[: len(fewer)], fewer)
    same, others = rows[labels == 1], rows[labels == 0]
    assert (CLUSTERS[same[:, 0]] == CLUSTERS[same[:, 1]]).all()
    assert (same[:, 0] != same[:, 1]).all()
    counts = np.bincount(CLUSTERS[same[:, 0]])
    assert counts.tolist() == [counts[0]] * 3  # the cluster of three counts as much as that of two
    assert {tuple(row) for row in same.tolist()} >= {(2, 3), (3, 2), (0, 1), (1, 0)}
    known = {frozenset(row) for row in labeled.tolist()}
    from_labels = [frozenset(row) in known for row in others.tolist()]
    assert sum(from_labels) == 2 * counts[0]
    for (a, b), is_labeled in zip(others.tolist(), from_labels, strict=True):
        assert is_labeled or b in HITS[a]
    # All that a query has, where it has fewer than asked for.
    assert (others[:, 0] == 1).sum() == (same[:, 0] == 1).sum()
    with pytest.raises(UserError, match="a known paraphrase"):
        draw_pairs(np.arange(10), HITS, labeled, count=5, negatives=2, seed=0)


def test_batches_have_about_one_length_and_each_pair_once():
    lengths = np.random.default_rng(0).integers(10, 60, size=1003)
    batches = batches_by_length(lengths, 10, seed=0)
    assert batches.shape == (100, 10)
    assert sorted(batches.reshape(-1).tolist()) == list(range(1000))
    assert np.ptp(lengths[batches], axis=1).mean() < 3


def test_a_step_scores_the_pairs_of_its_batch_as_predict_does():
    config = config_of()
    encoder = read_encoder(TINY)
    model = from_encoder(encoder, max_tokens=40, seed=0)
    split = SOURCES["synthetic"].read(config, pathlib.Path())
    hits = find_negatives(split, encoder.encode(split.data.questions), 5)
    given = []

    def id_lists(pairs):
        given[:] = pairs
        return model.tokenizer.id_lists(pairs)

    known = {name: getattr(model, name) for name in ("contents", "shape", "max_tokens")}
    start = SimpleNamespace(tokenizer=SimpleNamespace(id_lists=id_lists), **known)
    batch, _ = make_batches(config, split, hits, start)[1](0)
    step, state = make_cross_step(config, model, 10)
    state, metrics = step(state, batch)
    logits, labels = model.predict(given).astype(np.float64), batch[2]
    expected = np.mean(np.log1p(np.exp(logits)) - labels * logits)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    assert (int(state.step), len(labels)) == (1, 16)


def test_hits_are_of_other_meanings_and_of_the_training_split():
    config = config_of()
    split = SOURCES["synthetic"].read(config, pathlib.Path())
    vectors = read_encoder(TINY).encode(split.data.questions)
    negatives, validation = find_negatives(split, vectors, 5), find_hits(split, vectors, 5)
    clusters, split_of = split.clusters, split.splits.split_of
    for row, found in enumerate(negatives):
        found = found[found >= 0]
        if split_of[row] or clusters[row] < 0:
            assert not len(found)
        else:
            assert len(found) == 5
            assert (split_of[found] == 0).all()
            assert (clusters[found] != clusters[row]).all()
    assert (validation.hits != validation.queries[:, None]).all()
    assert (split_of[validation.queries] == 1).all()
    assert validation.hits.shape == validation.relevant.shape == (len(validation.queries), 5)


def test_scores_are_of_the_order_that_the_logits_give():
    questions = ["q", "long paraphrase", "no", "other", "p", "also no"]
    queries, hits = np.array([0, 3]), np.array([[2, 1, -1], [5, 4, 2]])
    relevant = np.array([[False, True, False], [False, True, False]])
    assert first_scores(relevant) == {"hits@1": 0.0, "hits@10": 1.0, "mrr@20": 0.5}
    shortest = SimpleNamespace(predict=lambda pairs: np.float32([-len(b) for _, b in pairs]))
    scores, logits = rerank_scores(shortest, questions, Validation(queries, hits, relevant))
    assert scores == {"hits@1": 0.5, "hits@10": 1.0, "mrr@20": 0.75}
    assert logits[0, 2] == -np.inf
    assert logits[1, 1] == -1


def losses_of(run):
    return [(row["step"], row["loss"]) for row in read_json_lines(run / "metrics.jsonl")]


def test_a_stopped_training_ends_with_the_same_bits(tmp_path, monkeypatch):
    config = config_of()
    report = train_and_evaluate(config, tmp_path / "whole")
    assert report["validation"]["queries"] > 10
    assert 0 <= report["validation"]["cross_encoder"]["mrr@20"] <= 1
    whole = read_cross_encoder(tmp_path / "whole")
    assert whole.fingerprint == report["fingerprint"]
    assert whole.settings["max_steps"] == 6
    assert whole.calibration is not None
    assert train_and_evaluate(config, tmp_path / "whole") == report  # finished

    arrays = itertools.count()

    def pad_and_stop(*given):
        if next(arrays) == 6:  # two of each batch
            os.kill(os.getpid(), signal.SIGTERM)
        return bert.padded(*given)

    monkeypatch.setattr(cross_encoder_job, "padded", pad_and_stop)
    with pytest.raises(Interrupted):
        train_and_evaluate(config, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "export").exists()
    monkeypatch.undo()
    train_and_evaluate(config, tmp_path / "stopped")
    stopped = read_cross_encoder(tmp_path / "stopped")
    assert stopped.fingerprint == whole.fingerprint
    np.testing.assert_array_equal(stopped.calibration, whole.calibration)
    steps, again = (losses_of(tmp_path / name) for name in ("whole", "stopped"))
    assert again == steps
    assert [step for step, _ in steps] == list(range(1, 7))
    assert read_json(tmp_path / "stopped" / "report.json")["fingerprint"] == whole.fingerprint
    with pytest.raises(UserError, match="seed"):
        train_and_evaluate(override(config, {"seed": 1}), tmp_path / "whole")


def test_training_starts_from_a_cross_encoder_too(tmp_path):
    model = from_encoder(read_encoder(TINY), max_tokens=40, seed=3)
    save_cross_encoder(tmp_path / "export", model)
    start = cross_encoder_job.read_start(config_of(**{"encoder.pretrained": str(tmp_path)}))
    assert start.fingerprint == model.fingerprint
    assert cross_encoder_job.read_start(config_of()).fingerprint != model.fingerprint


def test_settings_that_do_not_fit_are_named(tmp_path):
    check_refused(
        lambda changes: train_and_evaluate(config_of(**changes), tmp_path / "run"),
        ({"encoder.pretrained": ""}, "expected a transformer or a cross-encoder, got None"),
        ({"data.source": "questions"}, "must have pairs"),
        ({"distributed": True}, "must be false for a cross-encoder"),
        ({"batch_size": 0}, "must be above 0 for a cross-encoder"),
        ({"cross_encoder.first_stage": "/none"}, r"`cross_encoder\.first_stage`"),
        ({"encoder.pretrained": "/none"}, r"`encoder\.pretrained`"),
    )
