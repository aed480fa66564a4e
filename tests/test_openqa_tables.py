"""Tables 5 and 6 on question-answer logs: rows of both filters made, kept, and told."""

import csv
import json

import pytest

from experiments import openqa_results, openqa_rows
from experiments.configs import openqa_sdml
from experiments.paper_numbers import OPEN_DOMAIN
from experiments.quora_rows import ROWS, STUDY
from qpr_jax.errors import UserError
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from tests.distant.rows import log_rows, write_rows
from tests.runs import keep_row

COUNTS = {
    "rows": 500,
    "clusters_kept": 60,
    "method": {"coherence": "paper", "least": 0.1},
    "splits": {
        split: {"clusters": 20, "questions": 80, "pairs": 1234}
        for split in ("train", "validation", "test")
    },
}


def test_the_page_says_what_each_filter_keeps_and_which_orderings_hold(tmp_path):
    for filter_, best in (("pairwise", "sdml"), ("paper", "tl_ssd")):
        for name in ("sdml", "tl_ssd", "tl_hard_ssd"):
            keep_row(tmp_path / filter_, name, 0.8 if name == best else 0.4)
            report = {"data": {"distant_supervision": COUNTS}}
            write_json(tmp_path / filter_ / "rows" / name / "report.json", report)
    (tmp_path / "paper" / "verdicts.tsv").write_text("verdict\tsize\n1\t2\n0\t2\n1\t2\n0\t2\n")
    openqa_results.write_results(tmp_path)
    page = (tmp_path / "README.md").read_text()
    claim = "| SDML is better than random triplets | 5 |"
    ours, papers = (line for line in page.splitlines() if line.startswith(claim))
    assert ours.endswith("| holds |")
    assert papers.endswith("| does not hold |")
    assert "| train: pairs | 1,234 | 1,234 |" in page
    assert "| judged coherent, of a random sample |  | 0.500 [0.150, 0.850] of 4 |" in page
    for filter_ in ("pairwise", "paper"):
        table = (tmp_path / filter_ / "table_6.csv").read_text()
        rows = list(csv.DictReader(table.splitlines()))
        sdml = next(row for row in rows if row["row"] == "sdml" and row["metric"] == "MRR")
        assert float(sdml["paper"]) == 0.7480


def test_no_rows_are_told(tmp_path):
    with pytest.raises(UserError, match="expected rows, found none"):
        openqa_results.write_results(tmp_path)


@pytest.mark.parametrize("coherence", ["pairwise", "paper"])
def test_every_row_is_openqa_sdml_but_for_what_it_says(coherence):
    plain = flatten(openqa_sdml.get_config())
    for _, name, _ in OPEN_DOMAIN[5].rows:
        config = openqa_rows.row_config(name, coherence, seed=2)
        validate(config)
        changed = flatten(config)
        differing = {key for key in plain if plain[key] != changed[key]}
        assert differing <= {"seed", "data.coherence", *STUDY, *ROWS[name]}
        assert (changed["data.coherence"], changed["seed"]) == (coherence, 2)


SMALL = """
import sys
from experiments import openqa_rows, openqa_tables
from experiments.configs import synthetic_sdml_smoke
from qpr_jax.cli.program import run_absl

plain = openqa_rows.row_config

def small(name, coherence, seed=0):
    config = synthetic_sdml_smoke.shrink(plain(name, coherence, seed))
    config.data.min_coherence = 0.2
    return config

openqa_rows.row_config = small
sys.exit(run_absl(openqa_tables.main, sys.argv))
"""


def test_rows_are_made_of_logs_and_not_made_again(tmp_path, run_study):
    logs = tmp_path / "data" / "qa_logs"
    logs.mkdir(parents=True)
    write_rows(logs / "all.jsonl", log_rows())
    status, told = run_study(SMALL, "--coherence=pairwise", data=tmp_path / "data")
    assert status == 0, told
    rows = tmp_path / "results" / "pairwise" / "rows"
    names = {name for _, name, _ in OPEN_DOMAIN[5].rows}
    assert {path.name for path in rows.iterdir()} == names | {"openqa_sdml"}
    # The config as it stands is kept as a run, whose clusters are those that all rows had.
    assert (tmp_path / "runs" / "openqa_sdml" / "export").is_dir()
    counts = [
        json.loads((rows / name / "report.json").read_text())["data"]["distant_supervision"]
        for name in ("sdml", "openqa_sdml")
    ]
    assert counts[0] == counts[1]
    status, told = run_study(SMALL, "--coherence=pairwise", data=tmp_path / "data")
    assert status == 0, told
    assert "next" not in told
