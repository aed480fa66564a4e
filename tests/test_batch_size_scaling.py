"""The batch-size study: its rows, a row made, the page from what is kept, and the measurements."""

import json

import numpy as np
import pytest

from experiments import batch_size_results, batch_size_rows
from qpr_jax.training.checks import validate


@pytest.mark.parametrize("rule", batch_size_rows.RULES)
@pytest.mark.parametrize("size", batch_size_rows.SIZES)
def test_all_rows_but_those_to_early_stop_see_the_same_pairs(size, rule):
    config = batch_size_rows.row_config(size, rule)
    validate(config)
    if rule == "stop":
        assert config.max_steps == 0
        return
    assert abs(config.max_steps * size - batch_size_rows.EXAMPLES) < size
    # The last evaluation is at the end, and none is left out by early stopping.
    assert config.max_steps // config.early_stopping.every_steps <= config.early_stopping.patience


SMALL = """
import sys
from experiments import batch_size_rows, batch_size_scaling as study, measuring
from experiments.configs import quora_sdml, synthetic_sdml_smoke

plain = quora_sdml.get_config
batch_size_rows.EXAMPLES = 4000

def small():
    config = synthetic_sdml_smoke.shrink(plain())
    config.max_steps = 0
    return config

quora_sdml.get_config = small
batch_size_rows.STUDY = {}
study.run = lambda module, arguments: study.measure(**arguments)
study.ENCODE_CHUNK = 40
sys.exit(measuring.program(study.main, study.measure))
"""


def test_rows_are_made_once_and_the_page_is_made_of_them(run_study, tmp_path):
    status, told = run_study(SMALL, "--sizes=32,64", "--rules=mask")
    assert status == 0, told
    results = tmp_path / "results"
    assert {path.name for path in (results / "rows").iterdir()} == {"n_32_mask", "n_64_mask"}
    page = (results / "README.md").read_text()
    assert page.count("| by the root, own cluster masked | ") == 2
    for plot in ("quality", "false_negatives"):
        assert (results / "plots" / f"{plot}.png").stat().st_size > 1000
    settings = json.loads((results / "rows" / "n_64_mask" / "config.json").read_text())
    assert settings["batch_size"] == 64
    assert settings["learning_rate_scaling"] == "sqrt"
    metrics = [
        json.loads(line)
        for line in (results / "rows" / "n_64_mask" / "metrics.jsonl").read_text().splitlines()
    ]
    assert f"| {np.mean([row['false_negatives'] for row in metrics]):.3%} |" in page

    status, told = run_study(SMALL, "--sizes=64,32", "--rules=mask")
    assert status == 0, told
    assert "next:" not in told
    assert (results / "README.md").read_text() == page

    status, told = run_study(SMALL, "--bench", "--sizes=32,64")
    assert status == 0, told
    benched = (results / batch_size_results.BENCH_FILE).read_text().splitlines()
    assert [json.loads(row)["encode_chunk"] for row in benched] == [0, 40]
    assert "## Time and memory of a step" in (results / "README.md").read_text()
    assert (results / "plots" / "cost.png").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--sizes=0", "`--sizes`: expected positive whole numbers, got '0'"),
        ("--rules=cube", "`--rules`: expected some of sqrt, none, linear, mask, stop, got 'cube'"),
        ("rows", "expected flags only, got 'rows'; did you mean --rows?"),
    ],
)
def test_wrong_flags_are_told_in_one_line(run_study, flag, message):
    status, told = run_study(SMALL, flag)
    assert status == 1
    assert told == f"error: {message}\n"
