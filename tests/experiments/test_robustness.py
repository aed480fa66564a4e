"""The study of changed queries: the changes, the hits, the page."""

import json

import numpy as np
import pytest

from experiments import changed_hits, systems
from experiments import robustness as study
from experiments.query_changes import (
    CHANGES,
    Changed,
    change_queries,
    negated,
    renumbered,
    with_please,
    without_punctuation,
)
from qpr_jax.errors import UserError
from qpr_jax.evaluation.lexical import tfidf_text_search
from qpr_jax.training.overrides import load_config, override
from tests.runs import write_encoder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Why do people lie?", "Why do people not lie?"),
        ("What books should I read at 20?", "What books should I not read at 20?"),
        ("why is it hot", "why is it not hot"),
        ("How can I lose weight?", "How can I not lose weight?"),
        ("Why don't people lie?", None),
        ("Why do people never lie?", None),
        ("Is it good?", None),
        ("How long does it take?", None),
        ("What is it like?", None),
        ("What do you think of it?", None),
        ("How do I cook? I have rice.", None),
        ("How do the French cook?", None),
    ],
)
def test_not_is_put_in_where_it_fits(text, expected):
    assert negated(text) == expected


def test_a_number_becomes_another_of_its_size():
    found = [renumbered("class 10 of 2016", np.random.default_rng(i)) for i in range(60)]
    assert {text.split()[1] for text in found} == {"10", "20", "30"}
    years = {int(text.split()[3]) for text in found}
    assert years <= {*range(2013, 2020)}
    assert len(years) > 4
    assert all(text != "class 10 of 2016" for text in found)
    for text in ("no number", "a 6s or i7", "3.5 and 50% of $5", "on 1/2"):
        assert renumbered(text, np.random.default_rng(0)) is None


def test_small_changes():
    assert with_please("How? ") == "How, please?"
    assert with_please("tell me") == "tell me, please"
    assert without_punctuation("What's “Wi-Fi”, e.g.?") == "Whats Wi Fi eg"


def test_meanings_change_only_where_every_paraphrase_says_so():
    texts = ["Why do people lie in 2016?", "Why do people steal in 2016?", "Lies in 2016"]
    paraphrases = [["lies, 2016", "why lies 2016"], ["why no theft"], ["lies today"]]
    found = change_queries("number", texts, paraphrases, 99)
    assert found.queries.tolist() == [0]
    found = change_queries("negation", texts, paraphrases, 99)
    assert found.queries.tolist() == [0]
    assert found.texts == ["Why do people not lie in 2016?"]
    found = change_queries("lower", texts, paraphrases, 2)
    assert len(found.queries) == 2
    again = change_queries("lower", texts, paraphrases, 2)
    np.testing.assert_array_equal(found.queries, again.queries)


def test_hits_leave_the_own_question_out():
    questions = ["how to cook rice", "how to cook any rice", "rice in 2016", "rice, 2016", "dogs"]
    clusters = np.array([0, 0, 1, 1, -1])
    changed = {"unchanged": Changed(np.array([0, 1]), [questions[0], questions[2]])}
    changed["number"] = Changed(np.array([1]), ["rice in 2017"])
    corpus = changed_hits.Corpus(questions, clusters, np.array([0, 2]), changed)
    system = systems.System({"one": tfidf_text_search(questions)})
    found = changed_hits.find_hits(system, corpus)
    assert found["unchanged one right"].tolist() == [True, True]
    assert found["number one right"].tolist() == [True]
    assert 0 < found["number one score"][0] < found["unchanged one score"][1]
    nothing = {"unchanged": Changed(np.array([0]), ["xyz"])}
    found = changed_hits.find_hits(system, corpus._replace(changed=nothing))
    assert found["unchanged one right"].tolist() == [False]


def test_shares_of_hits_worked_by_hand():
    right = {
        study.UNCHANGED: np.array([True] * 10 + [False] * 2),
        "number": np.array([True, True, False, True]),
    }
    score = {
        study.UNCHANGED: np.arange(12, dtype=np.float32),
        "number": np.array([5.0, 0.5, 9.0, 9.0], np.float32),
    }
    row = study.Kept("row", "one", right, score)
    assert row.threshold == pytest.approx(0.9)
    queries = np.array([0, 1, 2, 11])  # the last was wrong before
    assert row.still("number", queries).tolist() == [True, True, False]
    assert row.accepted("number", queries).tolist() == [True, False, False]


@pytest.fixture
def small(generated_data, monkeypatch):
    """A generated log in place of the Quora pairs, with fewer pairs held out."""
    monkeypatch.setenv("QPR_DATA_DIR", str(generated_data))
    config = override(load_config("quora_sdml"), {"data.held_out_pairs": 300})
    monkeypatch.setattr(study, "load_config", lambda name: config)


def test_the_study_keeps_rows_and_writes_its_page(tmp_path, small, monkeypatch):
    write_encoder(tmp_path / "run")
    folders = {"results": tmp_path / "results", "workdir": tmp_path / "work"}
    runs = [f"mine={tmp_path / 'run'}"]
    assert study.STUDY.run(runs=runs, smoke=True, **folders) == 0
    only = {"tfidf": lambda texts: systems.System({"one": tfidf_text_search(texts)})}
    monkeypatch.setattr(study, "baselines", lambda cache: only)
    assert study.STUDY.run(baselines=True, smoke=True, **folders) == 0
    page = (tmp_path / "results" / "README.md").read_text()
    assert "|  | TF-IDF | `mine` |".replace("|  |", "| |") in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for name, change in CHANGES.items():
        titles = rows if name in study.SAME else [page]
        assert any(change.title in line for line in titles)
    assert (tmp_path / "results" / "robustness.png").stat().st_size > 1000
    scores = json.loads((tmp_path / "results" / "scores.json").read_text())["mine"]["one"]
    assert f" {scores['two']:.3f} (" in page

    monkeypatch.setattr(study, "find_hits", None)
    assert study.STUDY.run(runs=runs, smoke=True, **folders) == 0
    before = page, json.loads((tmp_path / "results/rows/mine/row.json").read_text())
    assert study.STUDY.run(rebuild=True, **folders) == 0
    assert before[0] == (tmp_path / "results" / "README.md").read_text()


def test_a_run_with_another_split_is_refused(tmp_path, small):
    write_encoder(tmp_path / "run", **{"data.split_seed": 7})
    with pytest.raises(UserError, match=r"expected a run with `data.split_seed` 0, got 7"):
        study.STUDY.run(runs=[f"a={tmp_path / 'run'}"], results=tmp_path, workdir=tmp_path / "work")
