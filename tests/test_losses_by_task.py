"""The study of losses by task: rows made, scored on all tasks, kept; a page, a plot, claims."""

import json
import pathlib

import pytest

from experiments import losses_by_task_results as results_module
from experiments import losses_by_task_rows as rows_module
from experiments.losses_by_task_rows import ROWS, row_config
from qpr_jax.errors import UserError
from qpr_jax.training.checks import unused_settings, validate


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_valid_config_that_sees_as_many_pairs(name):
    config = row_config(name, pathlib.Path("parts"))
    validate(config)
    both = 2 if name == "multitask_sum" else 1
    expected = rows_module.PAIRS * (2 if name == "multitask_twice" else 1)
    pairs = config.max_steps * config.batch_size * both
    assert expected - both * config.batch_size < pairs <= expected
    # Of the config of the encoder, for losses of pairs.
    assert set(unused_settings(config)) <= {
        "symmetric",
        "sampling",
        "mask_own_cluster",
        "smoothing",
    }


def test_an_unknown_row_and_no_rows_are_told(tmp_path):
    with pytest.raises(UserError, match=r"expected one of the rows .*, got 'sdlm'"):
        row_config("sdlm", tmp_path)
    with pytest.raises(UserError, match="expected rows, found none"):
        results_module.write_results(tmp_path)


def scores_of(**changed):
    base = dict.fromkeys(ROWS, dict.fromkeys(results_module.METRICS, 0.5))
    return {name: base[name] | changed.get(name, {}) for name in base}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"contrastive": {"classification": 0.6}}, "for classification: holds (+0.100)"),
        ({"ranking": {"classification": 0.6}}, "for classification: does not hold (-0.100)"),
        (
            {
                "contrastive": {"classification": 0.6},
                "ranking": {"classification": 0.5},
                "ranking_seed1": {"classification": 0.7},
            },
            "for classification: not told apart from the noise of seeds (+0.100)",
        ),
        ({"ranking": {"retrieval": 0.8}}, "better for retrieval: holds (+0.300)"),
        (
            {
                "ranking_64": {"retrieval": 0.1},
                "ranking_256": {"retrieval": 0.2},
                "ranking_4096": {"retrieval": 0.6},
            },
            "0.600): from each to the next, holds (+0.100); holds (+0.300); holds (+0.100).",
        ),
        ({"ranking_64": {"retrieval": 0.6}}, "to the next, does not hold (-0.100); not told apart"),
    ],
)
def test_claims_are_held_against_the_scores(changed, expected):
    again = {f"{name}_seed1": changed.get(name, {}) for name in ("ranking", "contrastive")}
    changed = again | changed
    assert expected in "\n".join(results_module.claims(scores_of(**changed)))


SMALL = """
import sys
from experiments import losses_by_task, losses_by_task_rows
from experiments.configs import synthetic_sdml_smoke
from qpr_jax.cli.program import run_absl

plain = losses_by_task_rows.row_config

def small(name, parts):
    config = synthetic_sdml_smoke.shrink(plain(name, parts))
    config.data.held_out_pairs = 100
    config.encoder.kernel_sizes = (3,)
    config.optimizer.learning_rate = 0.01
    return config

losses_by_task_rows.row_config = losses_by_task.row_config = small
sys.exit(run_absl(losses_by_task.main, sys.argv))
"""


def test_rows_are_made_scored_on_three_tasks_and_not_made_again(tmp_path, run_study):
    rows = "--rows=ranking,multitask_sum"
    status, told = run_study(SMALL, rows)
    assert status == 0, told
    results = tmp_path / "results"
    page = (results / "README.md").read_text()
    for name in ("ranking", "multitask_sum"):
        tasks = json.loads((results / "rows" / name / "tasks.json").read_text())
        assert tasks.keys() == {"classification", "mining", "retrieval"}
        assert tasks["mining"].keys() == tasks["retrieval"].keys() == {"dev", "test"}
        wanted = (
            tasks["classification"]["test"]["average_precision"],
            tasks["mining"]["test"]["average_precision"],
            tasks["retrieval"]["test"]["ndcg@10"],
        )
        assert all(0 < value < 1 for value in wanted)
        line = next(line for line in page.splitlines() if line.startswith(f"| {ROWS[name][0]} |"))
        assert all(f"| {value:.3f} |" in line for value in wanted)
    assert (results / "losses_by_task.png").stat().st_size > 10_000
    assert "next" not in run_study(SMALL, rows)[1]
