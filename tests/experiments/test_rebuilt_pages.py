"""The pages of the studies are what `--rebuild` makes of the rows that are kept next to them."""

import importlib
import json
import pathlib
import shutil

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from benchmarks import precision
from experiments import failures
from tests.runs import write_encoder

RESULTS = pathlib.Path(__file__).parents[2] / "results"
STUDIES = {
    **{"hard_negatives": "hard_negatives", "losses_by_task": "losses_by_task"},
    **{"openqa": "openqa_tables", "batch_size": "batch_size_scaling"},
    **{"distillation": "distillation", "multilingual": "multilingual", "noise": "noise"},
    **{"out_of_domain": "out_of_domain", "quora": "paper_tables", "robustness": "robustness"},
    "two_stages": "two_stages",
}
QUICK = ("hard_negatives", "losses_by_task", "openqa")  # the others take 2 to 10 s each


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in STUDIES]
)
def test_a_page_has_the_bytes_of_its_rows(name, tmp_path):
    """Of all files of a study but plots, whose bytes depend on the versions of libraries."""
    shutil.copytree(RESULTS / name, tmp_path / name)
    importlib.import_module(f"experiments.{STUDIES[name]}").STUDY.rebuild(tmp_path / name)
    made = [path for path in tmp_path.rglob("*") if path.suffix in (".md", ".csv", ".json")]
    assert made
    for path in made:
        kept = RESULTS / path.relative_to(tmp_path)
        assert path.read_bytes() == kept.read_bytes(), f"{kept}: run the study with --rebuild"


def test_all_studies_are_here():
    assert {path.parent.name for path in RESULTS.glob("*/rows")} == {*STUDIES} - {"openqa"}


def test_the_page_of_precisions_is_that_of_its_file():
    found = json.loads((RESULTS / "benchmarks" / "precision.json").read_text())
    assert precision.page(found) == (RESULTS / "benchmarks" / "precision.md").read_text()


def test_the_page_of_failures_is_that_of_its_counts(tmp_path):
    shutil.copytree(RESULTS / "failures", tmp_path / "failures")
    (tmp_path / "failures" / "README.md").unlink()
    failures.write_page(tmp_path / "failures")
    made = (tmp_path / "failures" / "README.md").read_text()
    assert made == (RESULTS / "failures" / "README.md").read_text()
    counts = json.loads((RESULTS / "failures" / "counts.json").read_text())
    assert failures.QUORA not in counts["examples"]  # their text may not be passed on


def test_failures_are_counted_on_small_sets(tmp_path, monkeypatch):
    """Of queries whose paraphrase is the only question that shares a word with them, none fails."""
    write_encoder(tmp_path / "run")
    texts = ["how can i learn python", "learn python", "cook rice", "how to cook rice"]
    relevance = csr_matrix(np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], bool))
    made = failures.QuestionSet("clinc150", texts, relevance, "")
    found = failures.count_set(made, tmp_path / "run", None)
    assert found.runs == ("one stage",)
    assert [case.question for case in found.cases] == texts
    assert failures.counts_of(found)["queries"][0]["queries"] == 4
