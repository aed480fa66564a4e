"""The study of students: rows made, timed, kept; a page, a plot."""

import json
import pathlib

import pytest

from experiments import distillation_results, distillation_rows
from experiments.configs import quora_distilled
from qpr_jax.errors import UserError
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten

TINY = pathlib.Path(__file__).parent / "encoders" / "tiny_bert"


@pytest.mark.parametrize("name", [*distillation_rows.ROWS, *distillation_rows.OTHERS])
def test_every_row_is_a_config_but_for_what_it_says(name):
    config = distillation_rows.row_config(name)
    validate(config)
    if name in distillation_rows.ROWS:
        plain, changed = flatten(quora_distilled.get_config()), flatten(config)
        differing = {key for key in plain if plain[key] != changed[key]}
        assert differing == {*distillation_rows.STUDY, *distillation_rows.ROWS[name][1]}


def test_an_unknown_row_and_no_rows_are_told(tmp_path):
    with pytest.raises(UserError, match=r"expected one of the rows .*, got 'bas'"):
        distillation_rows.row_config("bas")
    with pytest.raises(UserError, match="expected rows, found none"):
        distillation_results.write_results(tmp_path)


SMALL = f"""
import sys
from experiments import distillation, distillation_rows
from experiments.configs import synthetic_sdml_smoke
from qpr_jax.cli.program import run_absl

plain = distillation_rows.row_config

def small(name):
    config = synthetic_sdml_smoke.shrink(plain(name))
    config.teacher.model = {str(TINY)!r}
    config.teacher.cache = "cache"
    config.teacher.batch_size = 64
    config.encoder.kernel_sizes = (3,)
    config.early_stopping.every_steps = 100
    return config

distillation_rows.row_config = small
sys.exit(run_absl(distillation.main, sys.argv))
"""


def test_rows_are_made_and_timed_and_the_page_tells_both(tmp_path, run_study):
    status, told = run_study(SMALL, "--rows=base,imitation,tfidf")
    assert status == 0, told
    results = tmp_path / "results"
    assert {path.name for path in (results / "rows").iterdir()} == {"base", "imitation", "tfidf"}
    left = {path.name for path in (tmp_path / "runs" / "rows" / "base").iterdir()}
    assert "export" in left
    assert not left & {"checkpoints", "index"}
    page = (results / "README.md").read_text()
    assert "| no pair at all |" in page
    assert "| TF-IDF, cosine |" in page
    base = json.loads((results / "rows" / "base" / "report.json").read_text())
    scores = base["test"]["exact"]["per_query"]
    cells = [f"{scores[f'recall@{k}']:.3f}" for k in (1, 3, 5, 10)]
    assert f"| {' | '.join(cells)} |" in (tmp_path / "minilm" / "README.md").read_text()
    assert f"{scores['hits@1']:.3f} / {scores['mrr@20']:.3f}" in page
    status, told = run_study(SMALL, "--rows=base,imitation,tfidf", "--speed")
    assert status == 0, told
    speeds = json.loads((results / "speeds.json").read_text())
    assert speeds.keys() == {"base", "imitation"}
    assert f"{speeds['base']:,.0f} |" in (results / "README.md").read_text()
    assert (results / "quality_against_speed.png").stat().st_size > 10_000
    assert "next" not in run_study(SMALL, "--rows=base,imitation,tfidf")[1]
