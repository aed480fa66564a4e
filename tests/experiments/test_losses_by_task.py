"""The study of losses by task: its rows, the scores of a run on all tasks, the page, claims."""

import pathlib

import pytest

from experiments import losses_by_task as study
from experiments.losses_by_task import METRICS, ROWS, row_config
from qpr_jax.data.pairs import read_question_pairs
from qpr_jax.data.task_splits import Sizes, make_tasks, write_tasks
from qpr_jax.training.checks import validate
from tests.runs import keep_tasks, page_of, write_encoder


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_a_valid_config_that_sees_as_many_pairs(name):
    config = row_config(name, pathlib.Path("parts"))
    validate(config)
    both = 2 if name == "multitask_sum" else 1
    expected = study.PAIRS * (2 if name == "multitask_twice" else 1)
    pairs = config.max_steps * config.batch_size * both
    assert expected - both * config.batch_size < pairs <= expected


def scores_of(**changed):
    base = dict.fromkeys(ROWS, dict.fromkeys(METRICS, 0.5))
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
    assert expected in "\n".join(study.claims(scores_of(**changed)))


def test_the_page_has_the_scores_of_all_tasks(tmp_path):
    tasks = {
        name: keep_tasks(tmp_path, name, seed)
        for seed, name in enumerate(("ranking", "contrastive", "multitask_sum", "sdml"))
    }
    page = page_of(study.STUDY, tmp_path)
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0][2:] for row in rows] == [
        ROWS[name][0] for name in ROWS if name in tasks
    ]
    for name in tasks:
        row = next(row for row in rows if row.startswith(f"| {ROWS[name][0]} |"))
        scores = [
            tasks[name][task]["test"][key] for task, keys in METRICS.items() for key, _ in keys
        ]
        assert row.endswith(f" | {' | '.join(f'{score:.3f}' for score in scores)} |")
    assert (tmp_path / "losses_by_task.png").stat().st_size > 10_000


def test_a_run_is_scored_on_three_tasks(tmp_path, generated_data):
    path = generated_data / "quora" / "quora_duplicate_questions.tsv"
    write_tasks(tmp_path / "parts", make_tasks(read_question_pairs(path), Sizes()))
    assert study.training_pairs(tmp_path / "parts").is_file()
    write_encoder(tmp_path / "run")
    tasks = study.task_scores(tmp_path / "run", tmp_path / "parts")
    assert tasks.keys() == METRICS.keys()
    assert tasks["mining"].keys() == tasks["retrieval"].keys() == {"dev", "test"}
    for task, metrics in METRICS.items():
        assert all(0 < tasks[task]["test"][key] < 1 for key, _ in metrics)
