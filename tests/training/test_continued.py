"""A training that starts from a run's encoder, and one with the labels of a review."""

import csv

import numpy as np
import pytest

from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.errors import UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.encoder_job import content_of
from qpr_jax.training.model_families import MODEL_FAMILIES

FAMILY = MODEL_FAMILIES["cnn"]


def encoder_of(config, start=None):
    dataset = load_dataset(config, None, start)
    _, params = MODEL_FAMILIES[config.encoder.kind].init(config, dataset)
    return FAMILY.export(config, dataset, params), dataset


def test_a_cnn_starts_from_the_encoder_of_a_run(tmp_path):
    """Whatever the settings of words and shapes are: those of the encoder count."""
    shape = {"encoder.bag_of_words": True, "encoder.kernel_sizes": (2, 3)}
    config = load_config("synthetic_sdml:smoke", shape)
    first, dataset = encoder_of(config)
    save_encoder(tmp_path / "export", first)
    changes = {"encoder.pretrained": str(tmp_path), "text.vocabulary_size": 7, "seed": 5}
    changed = override(config, changes)
    start = FAMILY.start(changed)
    assert isinstance(start, CnnEncoder)
    second, _ = encoder_of(changed, start)
    assert second.identity == first.identity
    questions = dataset.data.questions[:20]
    np.testing.assert_array_equal(second.encode(questions), first.encode(questions))
    assert content_of(changed, pretrained=start) == {"pretrained.identity": first.identity}


def test_files_that_are_not_there_are_named(tmp_path):
    config = load_config("synthetic_sdml:smoke", {"encoder.pretrained": str(tmp_path)})
    with pytest.raises(UserError, match=r"`encoder\.pretrained`"):
        FAMILY.start(config)
    config = load_config("synthetic_sdml:smoke", {"data.labels": "nothing.csv"})
    with pytest.raises(
        UserError, match=r"`data\.labels`: expected a file, found none at nothing.csv"
    ):
        load_dataset(config, None)


def test_labels_are_trained_on_and_count_to_the_identity(tmp_path):
    config = load_config("synthetic_sdml:smoke")
    plain = load_dataset(config, None)
    first, second = (plain.data.questions[i] for i in plain.splits.pairs["train"][0])
    path = tmp_path / "verdicts.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id1", "id2", "question1", "question2", "is_duplicate", "score", "weight"])
        writer.writerow(["a", 1, first, "a question that is new", 1, 0.5, 3])
        writer.writerow(["b", 2, second, "one that is not the same", 0, 0.5, 3])
    config = override(config, {"data.labels": str(path)})
    dataset = load_dataset(config, None)
    new = dataset.data.questions.index("a question that is new")
    assert dataset.clusters[new] == dataset.clusters[dataset.data.questions.index(first)]
    assert dataset.report["added_labels"] == 2
    assert new in dataset.trainable_rows
    assert len(dataset.splits.non_duplicates["train"]) == 1 + len(
        plain.splits.non_duplicates["train"]
    )
    for name in ("validation", "test"):
        np.testing.assert_array_equal(dataset.splits.pairs[name], plain.splits.pairs[name])
    assert [*content_of(config)] == ["data.labels.sha256"]
