"""The index of a run, and trainings from a run's encoder and with the labels of a review."""

import shutil
from types import SimpleNamespace

import numpy as np

from qpr_jax.encoders.load import load_encoder
from qpr_jax.reranking.stages import Stages, read_stages
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.encoder_job import content_of, inherit, reuse_vectors
from tests.runs import calibrate, write_encoder, write_reranker
from tests.tables import write_table


def test_known_vectors_are_used_and_other_texts_encoded():
    """An index leaves HTML out before it encodes; `Retriever`'s tests have that."""
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return np.array([[len(text)] for text in texts], np.float32)

    reuse = reuse_vectors(SimpleNamespace(encode=encode), ["a", "<b>c</b>"], np.float32([[7], [8]]))
    assert reuse(["<b>c</b>", "c d", "a", "e"]).tolist() == [[8], [3], [7], [1]]
    assert encoded == ["c d", "e"]


def test_labels_are_trained_on_and_count_to_the_identity(tmp_path):
    config = load_config("synthetic_sdml:smoke")
    plain = load_dataset(config, None)
    first, second = (plain.data.questions[i] for i in plain.splits.pairs["train"][0])
    names = ("id1", "id2", "question1", "question2", "is_duplicate", "score", "weight")
    rows = [
        ("a", 1, first, "a question that is new", 1, 0.5, 3),
        ("b", 2, second, "one that is not the same", 0, 0.5, 3),
    ]
    path = write_table(tmp_path / "verdicts.csv", names, rows)
    config = override(config, {"data.labels": path})
    dataset = load_dataset(config, None)
    new = dataset.data.questions.index("a question that is new")
    assert dataset.clusters[new] == dataset.clusters[dataset.data.questions.index(first)]
    assert dataset.report["added_labels"] == 2
    assert new in dataset.trainable_rows
    others, before = (d.splits.non_duplicates["train"] for d in (dataset, plain))
    assert len(others) == 1 + len(before)
    for name in ("validation", "test"):
        np.testing.assert_array_equal(dataset.splits.pairs[name], plain.splits.pairs[name])
    assert [*content_of(config)] == ["data.labels.sha256"]


def test_a_run_without_a_re_ranker_keeps_the_second_stages_of_its_start(encoder_run, tmp_path):
    start = shutil.copytree(encoder_run, tmp_path / "start")
    write_encoder(tmp_path / "run", seed=1)
    stages = Stages(load_encoder(tmp_path / "run" / "export"))
    assert not inherit(stages, str(start))
    assert stages.light is stages.calibration is None
    light = write_reranker(start)
    known = calibrate(start, light)
    assert inherit(stages, str(start))
    assert stages.calibration.settings["start"] == str(start)
    stages.save(tmp_path / "run" / "export")  # as those of the new encoder
    encoder, found = read_stages(tmp_path / "run")
    assert found.light.encoder == found.calibration.encoder == encoder.identity != light.encoder
    np.testing.assert_array_equal(found.light.network.hidden, light.network.hidden)
    np.testing.assert_array_equal(found.calibration.weights, known.weights)
