"""The study of students: its rows, the page from made-up ones, the speeds."""

import json

import pytest

from experiments import distillation as study
from experiments.trials import load
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from qpr_jax.training.config import flatten
from tests.runs import keep_row, page_of, write_encoder

METRICS = [f"{m}@{k}" for m in ("recall", "precision", "map", "ndcg") for k in (1, 3, 5, 10)]


@pytest.mark.parametrize("name", [*study.ROWS, *study.TEXTS, *study.OTHERS])
def test_every_row_is_a_config_but_for_what_it_says(name):
    config = study.row_config(name)
    validate(config)
    students = study.ROWS | study.TEXTS
    if name in students:
        plain, changed = flatten(load("quora_distilled")), flatten(config)
        differing = {key for key in plain if plain[key] != changed[key]}
        said = study.CHANGES | students[name][1]
        assert {key: changed[key] for key in said} == said
        assert differing == {key for key, value in said.items() if value != plain[key]}


def keep_trial(results, name, rate, **report):
    keep_row(results, name, rate)
    scores = {m: (i + 1) * rate / 20 for i, m in enumerate((*METRICS, "mrr@20"))}
    found = {"per_query": scores, "agreement": rate / 2}
    report = {"test": {"exact": found, "agreement": rate / 2}} | report
    write_json(results / name / "report.json", report)
    return scores


def test_the_page_has_rows_speeds_and_cutoffs(tmp_path):
    results = tmp_path / "results"
    scores = keep_trial(results, "base", 0.8)
    keep_trial(results, "imitation", 0.6)
    keep_trial(results, "minilm", 0.7)
    # A search is scored exactly alone, and timed as it is made.
    tfidf = {"per_query": dict.fromkeys(scores, 0.125)}
    keep_trial(results, "tfidf", 0.4, test=tfidf, questions_per_second=4321.4)
    write_json(results / "speeds.json", {"base": 98765.4, "char_ngrams": 1.0})
    page = page_of(study.STUDY, results)
    page, _, cutoffs = page.partition("## Recall")
    lines = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line[:2] == "| "}
    assert lines["no pair at all"].endswith(" | +0.000 [+0.000, +0.000] |")
    assert lines["TF-IDF, cosine"].endswith(" |  | 4,321 |")
    assert "| 0.400 | 98,765 |" in page
    cells = [f"{scores[f'recall@{k}']:.3f}" for k in (1, 3, 5, 10)]
    assert f"| {study.TITLES['base']} | {' | '.join(cells)} |" in cutoffs
    assert f"| TF-IDF, cosine | {' | '.join(['0.125'] * 8)} |" in cutoffs
    assert "| | MAP@1 | MAP@3 | MAP@5 | MAP@10 | NDCG@1 | " in cutoffs
    assert cutoffs.count("MRR@20") == 1
    assert (results / "quality_against_speed.png").stat().st_size > 10_000


def test_the_page_has_quality_against_the_number_of_texts(tmp_path):
    results = tmp_path / "results"
    for name, rate, unlabelled in (("texts_quora", 0.5, 0), ("texts_open", 0.75, 1500)):
        data = {"splits": {"train": {"questions": 1000}}, "unlabelled": unlabelled}
        keep_trial(results, name, rate, data=data, timing={"steps": 10 + unlabelled})
    page = page_of(study.STUDY, results)
    first, second = [line for line in page.splitlines() if " epochs | " in line]
    assert first.startswith("| Quora, 4 epochs | 1,000 | 10 | ")
    assert first.endswith(" |  |")
    assert "| 2,500 | 1,510 | " in second
    assert "[" in second
    assert (results / "quality_against_texts.png").stat().st_size > 10_000


def test_speeds_are_of_the_encoders_that_are_there(tmp_path, generated_data, monkeypatch):
    monkeypatch.setenv("QPR_DATA_DIR", str(generated_data))
    monkeypatch.setattr(study, "_ROUNDS", 1)
    results, workdir = tmp_path / "results", tmp_path / "runs"
    for name in ("base", "imitation"):
        keep_trial(workdir, name, 0.5)
        write_encoder(workdir / name)
    results.mkdir()
    write_json(results / "speeds.json", {"pairs": 17.0})
    rows = ["base", "imitation", "tfidf"]
    assert study.STUDY.run(speed=True, rows=rows, results=results, workdir=workdir) == 0
    speeds = json.loads((results / "speeds.json").read_text())
    assert speeds.keys() == {"base", "imitation", "pairs"}
    assert f"{speeds['base']:,.0f} |" in (results / "README.md").read_text()


def test_flags_choose_the_rows():
    trials = study.trials(study.STUDY.read_flags({}))
    names = [*study.UNTRAINED, *study.OTHERS, *study.ROWS, *study.TEXTS]
    assert [trial.name for trial in trials] == names
    assert {trial.name for trial in trials if trial.search} == {*study.UNTRAINED}
    assert all(trial.keep == "encoder" for trial in trials if not trial.search)
    assert [t.name for t in study.trials(study.STUDY.read_flags({"rows": ["base"]}))] == ["base"]


def test_the_lexical_searches_are_timed():
    search, more = study._SEARCHES["tfidf"](["how do i cook rice", "what is rust", "rice"])
    assert search([0], 2)[0][0] in (0, 2)
    assert more["questions_per_second"] > 0


def test_further_seeds_train_what_is_trained():
    flags = study.STUDY.read_flags({"rows": ["bm25", "base"], "seeds": 2})
    trials = study.trials(flags)
    assert [trial.name for trial in trials] == ["bm25", "base", "base-seed1"]
    assert [trial.config.seed for trial in trials[1:]] == [0, 1]
    assert [trial.keep for trial in trials[1:]] == ["encoder", "scores"]
