"""The study of hard negatives: its rows, hidden links, the page."""

import json

import numpy as np
import pytest

from experiments import hard_negatives as study
from experiments.hidden_paraphrases import Corpus, Method, false_negatives, hide_links
from qpr_jax.data.splits import HELD_OUT, group_questions
from qpr_jax.files import write_json
from qpr_jax.index.negatives import Rules
from qpr_jax.training.checks import validate
from tests.runs import WORDS, keep_row, page_of, write_encoder


def test_every_row_has_settings_that_are_read(tmp_path):
    (tmp_path / "export" / "reranker").mkdir(parents=True)
    flags = study.STUDY.read_flags({"cross_encoder": "judge", "run": str(tmp_path), "seeds": 2})
    trials = study.trials(flags)
    assert len(trials) == 2 * len(study.METHODS) * len(study.LOSSES)
    assert (trials[0].name, trials[-1].name) == ("none_sdml", "denoised_ranking-seed1")
    for trial in trials:
        validate(trial.config)
        mined = study.METHODS[trial.name.partition("_sdml")[0].partition("_ranking")[0]][1]
        assert bool(trial.config.data.negatives) == bool(mined)


def test_denoised_rows_need_who_judges(tmp_path):
    """The encoder that the study trains itself has a light re-ranker."""
    known = [*study.METHODS]
    assert study.methods(study.STUDY.read_flags({})) == known[:-1]
    without = {"run": str(tmp_path)}
    assert study.methods(study.STUDY.read_flags(without)) == known[:-2]
    assert study.methods(study.STUDY.read_flags(without | {"rows": ["light", "denoised"]})) == []


def test_halves_share_no_text_and_small_clusters_stay():
    questions = [*"abcdefg", "A", "B!", "x", "y"]
    clusters = np.array([0] * 9 + [1, 1])
    groups = group_questions(questions, clusters)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    halves = hide_links(questions, groups, members, seed=4)
    assert halves[9] == halves[10] == groups[9]
    parts = [np.flatnonzero(halves == half) for half in np.unique(halves[:9])]
    texts = [{questions[i].lower().strip("!") for i in part} for part in parts]
    assert sorted(map(len, texts)) == [3, 4]
    assert not texts[0] & texts[1]


@pytest.fixture
def corpus(tmp_path):
    """Six words of one meaning among others, by an encoder of random weights."""
    write_encoder(tmp_path, **{"index.factory": "Flat"})
    questions = [*WORDS[:12]]
    groups = np.array([0] * 6 + list(range(1, 7)))
    return Corpus(questions, groups, np.ones(12, bool), str(tmp_path))


def test_hidden_paraphrases_among_the_negatives_are_counted(corpus):
    """With all others as negatives each query meets the other half, three of nine."""
    found = false_negatives(corpus, None, Method(Rules(count=9)))
    assert found == {"queries": 6, "negatives": 54, "false": 18, "queries_with_false": 6}
    found = false_negatives(corpus, None, Method(Rules(count=9)), most=1)
    assert found == {"queries": 3, "negatives": 27, "false": 9, "queries_with_false": 3}
    paraphrases = set(corpus.questions[:6])

    def score(pairs):
        return np.array([hit in paraphrases for _, hit in pairs], float)

    found = false_negatives(corpus, None, Method(Rules(count=9), score=score))
    assert (found["negatives"], found["false"]) == (36, 0)
    chosen = np.arange(12) > 5
    assert false_negatives(corpus, chosen, Method(Rules()))["queries"] == 0


def test_the_page_has_scores_and_shares(tmp_path):
    for method, rate in (("none", 0.7), ("rank_1", 0.5), ("margin", 0.8)):
        ranks = keep_row(tmp_path, f"{method}_sdml", rate)
        ranks |= {f"{split}_exact": ranks[f"{split}_index"] for split in HELD_OUT}
        np.savez(tmp_path / f"{method}_sdml" / "ranks.npz", **ranks)
    found = {"queries": 10, "negatives": 20, "false": 5, "queries_with_false": 4}
    mined = {"queries": 100, "negatives": 150}
    counted = {"margin": {"mined": mined, "train": found, "validation": found}}
    write_json(tmp_path / study.COUNTED, counted)
    page = page_of(study.STUDY, tmp_path)
    assert "ranking" not in page.split("## How many")[0].split("## SDML")[1]
    assert "| 150 | 2.00 | 0.250 | 0.400 | 2.00 | 0.250 | 0.400 |" in page
    lines = [line.split(" | ") for line in page.splitlines() if line.startswith("| the nearest")]
    lines = [cells for cells in lines if "[" in cells[3]]
    assert [cells[3][:3] for cells in lines] == ["-0.", "+0."]


@pytest.mark.slow
def test_the_study_runs(run_study, tmp_path):
    write_encoder(tmp_path / "miner")
    rows = ("--rows=none,margin", f"--run={tmp_path / 'miner'}")
    status, stderr = run_study("hard_negatives", "--smoke", *rows)
    assert status == 0, stderr
    mined = (tmp_path / "runs" / "rows" / "negatives" / "margin.jsonl").read_text().splitlines()
    assert {"query", "negative", "rank"} <= {*json.loads(mined[0])}
    assert "## How many are paraphrases" in (tmp_path / "results" / "README.md").read_text()
