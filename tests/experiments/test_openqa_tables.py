"""Tables 5 and 6 on question-answer logs: the rows of both filters, and the page."""

import csv

import pytest

from experiments import openqa_tables
from experiments.paper_numbers import OPEN_DOMAIN
from experiments.paper_tables import CHANGES, ROWS
from experiments.trials import load
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from tests.runs import keep_row, page_of

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
            write_json(tmp_path / filter_ / name / "report.json", report)
    (tmp_path / "paper" / "verdicts.tsv").write_text("verdict\tsize\n1\t2\n0\t2\n1\t2\n0\t2\n")
    page = page_of(openqa_tables.STUDY, tmp_path)
    claim = "| SDML is better than random triplets | 5 |"
    ours, papers = (line for line in page.splitlines() if line.startswith(claim))
    assert ours.endswith("| holds |")
    assert papers.endswith("| does not hold |")
    assert "| train: pairs | 1,234 | 1,234 |" in page
    assert "| judged coherent, of a random sample |  | 0.500 [0.150, 0.850] of 4 |" in page
    scores = [*csv.DictReader((tmp_path / "scores.csv").read_text().splitlines())]
    assert {row["row"].partition(": ")[0] for row in scores} == {"pairwise", "paper"}


@pytest.mark.parametrize("coherence", ["pairwise", "paper"])
def test_every_row_is_openqa_sdml_but_for_what_it_says(coherence):
    plain = flatten(load("openqa_sdml"))
    for _, name, _ in OPEN_DOMAIN[5].rows:
        config = openqa_tables.row_config(name, coherence, seed=2)
        validate(config)
        changed = flatten(config)
        differing = {key for key in plain if plain[key] != changed[key]}
        assert differing <= {"seed", "data.coherence", *CHANGES, *ROWS[name]}
        assert (changed["data.coherence"], changed["seed"]) == (coherence, 2)


def test_the_whole_config_is_trained_once_beside_the_rows_of_its_filter():
    trials = openqa_tables.trials(openqa_tables.STUDY.read_flags({"seeds": 2}))
    names = {row[1] for row in OPEN_DOMAIN[5].rows}
    seeded = names | {f"{name}-seed1" for name in names}
    groups = {group: [t for t in trials if t.group == group] for group in ("pairwise", "paper")}
    assert {trial.name for trial in groups["paper"]} == seeded
    assert {trial.name for trial in groups["pairwise"]} == seeded | {"openqa_sdml"}
    flags = openqa_tables.STUDY.read_flags({"coherence": "paper"})
    assert {trial.group for trial in openqa_tables.trials(flags)} == {"paper"}
