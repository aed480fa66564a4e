"""The study of false negatives: its rows, the rate measured in their batches, curves."""

import csv

import numpy as np
import pytest

from experiments import noise
from experiments.trials import seeded, shrink
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from qpr_jax.training.dataset import load_dataset
from tests.runs import keep_row, page_of


def test_curves_are_means_over_seeds_with_what_each_loss_loses(tmp_path):
    for loss, last in (("sdml", 0.85), ("eps_0", 0.6), ("tl_rand", 0.3)):
        for rate, share in ((0.0, 0.9), (0.5, last)):
            for seed in range(2):
                keep_row(tmp_path, f"{loss}_{rate}", share + 0.02 * seed, seed)
                config = noise.row_config(loss, rate, seed)
                config.data.max_rows = 1000
                folder = tmp_path / seeded(f"{loss}_{rate}", seed)
                write_json(folder / "run.json", flatten(config))
    page = page_of(noise.STUDY, tmp_path)
    claims = {line.split(" | ")[0]: line for line in page.splitlines() if line.endswith("holds |")}
    assert set(claims) == {
        "| smoothing costs less than none",
        "| SDML loses less than random triplets",
    }
    scores = csv.DictReader((tmp_path / "scores.csv").read_text().splitlines())
    row = next(row for row in scores if row["row"] == "sdml_0.5" and " H@1 " in row["metric"])
    assert row["seeds"] == "2"
    assert float(row["mean"]) == pytest.approx(0.86, abs=0.04)
    assert float(row["low"]) < float(row["mean"]) < float(row["high"])
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_the_measured_rate_is_that_of_the_batches_drawn():
    settings = flatten(noise.row_config("sdml", 0.0))
    settings["data.max_rows"] = 1000
    measured = [noise.measured_rate(rate, settings) for rate in (0.0, 0.25, 0.5)]
    np.testing.assert_allclose(measured, [0, 0.25, 0.5], atol=0.02)


def test_every_row_has_valid_settings():
    for loss in noise.LOSSES:
        for rate in noise.RATES:
            validate(noise.row_config(loss, rate))


def test_the_page_has_every_finished_row(tmp_path):
    settings = flatten(noise.row_config("sdml", 0.0)) | {"data.max_rows": 1000}
    for name in ("sdml_0.0", "sdml_0.3", "tl_hard_0.0", "tl_hard_0.3"):
        keep_row(tmp_path, name, 0.5)
        write_json(tmp_path / name / "run.json", settings)
    page = page_of(noise.STUDY, tmp_path)
    assert "![MRR" in page
    table = [line.split(" | ") for line in page.splitlines() if line.startswith(("| 0 |", "| 0.3"))]
    assert [[" ± 0.000" in cell for cell in cells[2:]] for cells in table] == [
        [True, False, False, True]
    ] * 2


def test_trials_name_loss_rate_and_seed():
    trials = noise.trials(noise.STUDY.read_flags({"seeds": 2}))
    assert len(trials) == 4 * 6 * 2
    assert trials[0].name == "sdml_0.0"
    assert trials[-1].name == "tl_hard_0.5-seed1"


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_there_are_enough_questions_for_every_rate_at_tiny_shapes(rate):
    config = shrink(noise.row_config("sdml", rate))
    dataset = load_dataset(config, None)
    assert len(dataset.splits.pairs["train"]) >= config.batch_size
