"""A training by similarities, from the settings to what it finds."""

import json
import logging

import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.main import train_and_evaluate


def config_of(**changes):
    config = load_config("synthetic_sdml:smoke")
    config = override(
        config,
        {
            "loss.names": ("ranking",),
            "encoder.normalize": True,
            "loss.smoothing": 0.0,
            "rerank.candidates": 0,
        }
        | changes,
    )
    return config


@pytest.mark.parametrize(
    "changes",
    [
        {"loss.mask_own_cluster": True, "loss.symmetric": True, "batch.sampling": "clusters"},
        pytest.param(
            {
                "loss.smoothing": 0.1,
                "devices": 4,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_a_training_learns(changes, tmp_path):
    config = config_of(**{"max_steps": 60, "optimizer.learning_rate": 1e-2, **changes})
    config.early_stopping.every_steps = 30
    report = train_and_evaluate(config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert report["test"]["exact"]["per_query"]["mrr@20"] > 0.4


def test_vectors_of_different_lengths_are_warned_of(tmp_path, caplog):
    nothing = {"data.source": "quora", "data.path": str(tmp_path / "none.tsv")}
    for normalize, times in ((False, 1), (True, 0)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="qpr_jax"), pytest.raises(UserError):
            train_and_evaluate(
                config_of(**{"encoder.normalize": normalize, **nothing}), tmp_path / "run"
            )
        warnings = [line for line in caplog.messages if "set `encoder.normalize=True`" in line]
        assert len(warnings) == times
