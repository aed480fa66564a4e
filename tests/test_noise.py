"""The study of false negatives: rows made, the rate measured in their batches, curves."""

import csv

import numpy as np
import pytest

from experiments import noise_results, noise_rows
from experiments.quora_rows import row_name
from qpr_jax.errors import UserError
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from tests.runs import keep_row


def test_curves_are_means_over_seeds_with_what_each_loss_loses(tmp_path):
    for loss, last in (("sdml", 0.85), ("eps_0", 0.6), ("tl_rand", 0.3)):
        for rate, share in ((0.0, 0.9), (0.5, last)):
            for seed in range(2):
                keep_row(tmp_path, f"{loss}_{rate}", share + 0.02 * seed, seed)
                config = noise_rows.row_config(loss, rate, seed)
                config.data.synthetic_clusters = 1000
                folder = tmp_path / "rows" / row_name(f"{loss}_{rate}", seed)
                write_json(folder / "config.json", flatten(config))
    noise_results.write_results(tmp_path)
    page = (tmp_path / "README.md").read_text()
    claims = {line.split(" | ")[0]: line for line in page.splitlines() if line.endswith("holds |")}
    assert set(claims) == {
        "| smoothing costs less than none",
        "| SDML loses less than random triplets",
    }
    curves = list(csv.DictReader((tmp_path / "curves.csv").read_text().splitlines()))
    row = next(row for row in curves if row["loss"] == "sdml" and row["rate"] == "0.5")
    assert row["seeds"] == "2"
    assert float(row["H@1"]) == pytest.approx(0.86, abs=0.04)
    assert float(row["measured_rate"]) == pytest.approx(0.5, abs=0.05)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_the_measured_rate_is_that_of_the_batches_drawn():
    settings = flatten(noise_rows.row_config("sdml", 0.0))
    settings["data.synthetic_clusters"] = 1000
    measured = [noise_results.measured_rate(rate, settings) for rate in (0.0, 0.25, 0.5)]
    np.testing.assert_allclose(measured, [0, 0.25, 0.5], atol=0.02)


def test_every_row_has_valid_settings():
    for loss in noise_rows.LOSSES:
        for rate in noise_rows.RATES:
            validate(noise_rows.row_config(loss, rate))


def test_no_rows_are_told(tmp_path):
    with pytest.raises(UserError, match="expected rows, found none"):
        noise_results.write_results(tmp_path)


SMALL = """
import sys
from experiments import noise, noise_rows
from experiments.configs import synthetic_sdml_smoke
from qpr_jax.cli.program import run_absl

plain = noise_rows.row_config

def small(loss, rate, seed=0):
    config = synthetic_sdml_smoke.shrink(plain(loss, rate, seed))
    config.data.synthetic_clusters = 400
    return config

noise_rows.row_config = small
noise.RATES = (0.0, 0.3)
noise.LOSSES = {name: noise.LOSSES[name] for name in ("sdml", "tl_hard")}
sys.exit(run_absl(noise.main, sys.argv))
"""


def test_rows_are_made_and_not_made_again(tmp_path, run_study):
    status, told = run_study(SMALL, "--seeds=1")
    assert status == 0, told
    rows = tmp_path / "results" / "rows"
    assert {path.name for path in rows.iterdir()} == {
        *("sdml_0.0", "sdml_0.3", "tl_hard_0.0", "tl_hard_0.3"),
    }
    assert "![MRR" in (tmp_path / "results" / "README.md").read_text()
    assert "next" not in run_study(SMALL, "--seeds=1")[1]
