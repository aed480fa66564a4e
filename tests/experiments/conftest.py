"""Finished trials, made up."""

import numpy as np
import pytest

from qpr_jax.files import write_json
from tests.runs import keep_row


@pytest.fixture
def train():
    """A trainer that writes ranks with a hit rate that the settings decide; counts its calls."""

    def fake(config, folder):
        fake.trained.append(folder.name)
        rate = 0.9 - config.loss.smoothing + 0.02 * config.seed
        (folder / "export").mkdir()
        (folder / "checkpoints").mkdir()
        (folder / "kept").mkdir()
        ranks = keep_row(folder / "kept", "row", rate)
        np.savez(folder / "ranks.npz", **ranks)
        write_json(folder / "report.json", {"timing": {"steps": 12}})

    fake.trained = []
    return fake
