"""Any study: trials made, killed, resumed and shared between processes; the page."""

import dataclasses
import json
import logging
import pathlib
import signal

import pytest

from experiments import (
    batch_size_scaling,
    distillation,
    losses_by_task,
    noise,
    openqa_tables,
    paper_tables,
)
from experiments.lexical import tfidf_search
from experiments.study import Study, Trials
from experiments.trials import Trial, load, make_trials, seeded, shrink
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import locked, write_json
from tests.distant.rows import log_rows, write_rows
from tests.encoders.examples import TINY
from tests.runs import keep_row, page_of

STUDIES = (batch_size_scaling, distillation, losses_by_task, noise, openqa_tables, paper_tables)
INTERRUPTED: list[pathlib.Path] = []


def interrupt_once(run):
    """A file of a trial; the first time a signal comes while it is made."""
    if not INTERRUPTED:
        INTERRUPTED.append(run)
        raise Interrupted(signal.SIGTERM)
    return {"files": sorted(path.name for path in run.iterdir())}


def trials(flags):
    return [
        Trial("plain", load("synthetic_sdml"), keep="encoder"),
        Trial("seeded-seed1", load("synthetic_sdml", seed=1), files={"more.json": interrupt_once}),
        Trial(
            "tfidf",
            load("synthetic_sdml"),
            search=lambda questions: (tfidf_search(questions), {"questions": len(questions)}),
        ),
    ]


def page(done):
    scores = done.scores("test", "pair")
    return [f"{name}: {scores.mean(name)[0]:.4f}\n" for name in done.ranks]


STUDY = Study("tiny", "tiny", trials, page, data=lambda flags: (None, None))


@pytest.fixture
def lines():
    """What the study logs."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("qpr_jax.study")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_trials_resume_and_are_shared_and_the_page_has_their_scores(tmp_path, lines):
    results, workdir = tmp_path / "results", tmp_path / "runs"
    INTERRUPTED.clear()

    def run(**flags):
        lines.clear()
        return STUDY.run(results=results, workdir=workdir, **flags)

    with locked(workdir / ".tfidf.lock"):  # as if another process made it
        assert run(smoke=True) == 128 + signal.SIGTERM
        assert lines[0] == "3 trials left; next: plain"
        assert not results.exists()
        made = (workdir / "plain" / "report.json").stat().st_mtime_ns

        assert run(smoke=True) == 0
        assert lines[0].startswith("2 trials left, about ")
        assert lines[0].endswith("next: seeded-seed1")
        assert lines[1] == "tfidf is being made by another process"
    assert (workdir / "plain" / "report.json").stat().st_mtime_ns == made
    assert "tfidf" not in (results / "README.md").read_text()

    assert run(smoke=True) == 0
    assert lines[0] == "1 trials left, about 0 minutes of training; next: tfidf"
    assert "export" in json.loads((workdir / "seeded-seed1" / "more.json").read_text())["files"]
    done = Trials(results, workdir)
    reports = done.read("report.json")
    # The scores of pages, from the ranks of queries, are those of the trial's report.
    for trial, name in (("plain", "plain"), ("seeded-seed1", "seeded")):
        test = reports[trial]["test"]
        for found, over, search in (
            (test["per_pair"], "pair", "index"),
            (test["exact"]["per_query"], "query", "exact"),
        ):
            expected = [found[metric] for metric in ("hits@1", "hits@10", "mrr@20")]
            assert done.scores("test", over, search).mean(name) == pytest.approx(expected)
    assert reports["tfidf"]["questions"] == reports["plain"]["data"]["questions"]
    folders = {path.name for path in (workdir / "seeded-seed1").iterdir() if path.is_dir()}
    assert folders == set()
    assert [path.name for path in (workdir / "plain").iterdir() if path.is_dir()] == ["export"]

    # People write around the tables.
    text = (results / "README.md").read_text()
    assert "\nplain: 0." in text
    assert "\nseeded: 0." in text
    (results / "README.md").write_text(f"Before.\n{text}After.\n")
    assert run(smoke=True) == 0
    assert not [line for line in lines if "next" in line]
    assert (results / "README.md").read_text() == f"Before.\n{text}After.\n"
    (results / "README.md").write_text("No markers.\n")
    with pytest.raises(UserError, match=r"README.md: the lines .* are missing"):
        run(smoke=True)

    with pytest.raises(UserError, match=r"plain: `\S+` is .*, the study asks for .* remove"):
        run()  # the same trials at full size


def test_a_trial_that_fails_does_not_keep_the_others_from_being_made(tmp_path, monkeypatch):
    def train(config, run):
        if config.seed == 1:
            raise UserError("expected finite numbers, got nan")
        (run / "export").mkdir(parents=True)
        (run / "report.json").write_text("{}")

    monkeypatch.setattr("qpr_jax.training.main.train_and_evaluate", train)
    config = load("synthetic_sdml")
    made = [
        Trial("fails", load("synthetic_sdml", seed=1)),
        Trial("good", config, group="some"),
        Trial("whole", config, keep="run"),
    ]
    failed = make_trials(made, tmp_path, (None, None))
    assert failed == ["fails: expected finite numbers, got nan"]
    assert not (tmp_path / "some" / "good" / "export").exists()
    assert (tmp_path / "whole" / "export").exists()

    study = dataclasses.replace(STUDY, trials=lambda flags: made[:1])
    keep_row(tmp_path / "others", "sdml", 0.5)
    with pytest.raises(UserError, match=r"^1 trials failed: fails: expected finite"):
        study.run(results=tmp_path / "results", workdir=tmp_path / "others")
    assert "\nsdml: 0." in (tmp_path / "results" / "README.md").read_text()


def test_a_trial_made_otherwise_is_not_taken_for_done(tmp_path):
    trial = Trial("mask", paper_tables.row_config("mask"))
    assert not trial.is_done(tmp_path, "abc")
    settings = trial.settings | {"data.sha256": "abc"}
    write_json(tmp_path / "mask" / "run.json", settings)
    assert not trial.is_done(tmp_path, "abc")  # still trained
    write_json(tmp_path / "mask" / "report.json", {})
    assert trial.is_done(tmp_path, "abc")
    with pytest.raises(UserError, match=r"`data\.sha256` is 'abc', the study asks for 'abd'"):
        trial.is_done(tmp_path, "abd")
    write_json(tmp_path / "mask" / "run.json", settings | {"loss.smoothing": 0.2})
    with pytest.raises(UserError, match=r"`loss.smoothing` is 0\.2, the study asks for 0\.3"):
        trial.is_done(tmp_path, "abc")


def test_trials_scored_on_other_queries_are_refused(tmp_path):
    keep_row(tmp_path, "averaging", 0.6, queries=300)
    keep_row(tmp_path, "mask", 0.6)
    keep_row(tmp_path, "sdml", 0.6)
    with pytest.raises(UserError, match="averaging: scored on other queries than the other"):
        page_of(paper_tables.STUDY, tmp_path)


def test_an_unfinished_trial_is_not_read(tmp_path):
    keep_row(tmp_path, "sdml", 0.6)
    keep_row(tmp_path, "mask", 0.6)
    (tmp_path / "mask" / "report.json").unlink()
    assert list(Trials(tmp_path, tmp_path).ranks) == ["sdml"]


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        (paper_tables, {"rows": ["sdm"]}, "`--rows`: expected some of bm25, .*, got 'sdm'"),
        (paper_tables, {"rows": ["sdml"], "table": "1"}, "`--rows`, `--table`: expected one of"),
        (distillation, {"rows": ["bas"]}, "`--rows`: expected some of .*, got 'bas'"),
        (losses_by_task, {"rows": ["sdlm"]}, "`--rows`: expected some of .*, got 'sdlm'"),
        (
            batch_size_scaling,
            {"sizes": ["0"]},
            "`sizes`: expected positive whole numbers, got '0'",
        ),
        (
            batch_size_scaling,
            {"rules": ["cube"]},
            "`--rules`: expected some of none, sqrt, linear, mask, stop, got 'cube'",
        ),
    ],
)
def test_wrong_flags_are_refused(module, flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        module.STUDY.run(results=tmp_path, workdir=tmp_path, **flags)


@pytest.mark.parametrize("module", STUDIES, ids=lambda module: module.__name__)
def test_every_study_names_its_folders_and_flags(module):
    study = module.STUDY
    assert (pathlib.Path(__file__).parent.parent.parent / "results" / study.results).is_dir()
    assert study.actions.keys() <= study.flags.keys()
    names = [
        (trial.group, trial.name)
        for trial in study.trials(study.read_flags({"seeds": 2} if "seeds" in study.flags else {}))
    ]
    assert len(set(names)) == len(names) > 10


def test_an_encoder_that_is_not_trained_is_scored(tmp_path):
    changes = {"encoder.kind": "bert", "encoder.pretrained": str(TINY), "max_epochs": 0}
    trial = Trial("as_it_is", shrink(load("synthetic_sdml", changes)))
    assert make_trials([trial], tmp_path, (None, None)) == []
    assert trial.is_done(tmp_path, None)


def test_seeds_are_in_the_name_but_for_the_first():
    assert [seeded("mask", seed) for seed in (0, 1)] == ["mask", "mask-seed1"]


def test_the_program_reads_flags_and_says_one_line(run_study, tmp_path):
    status, said = run_study("losses_by_task", "--rows=sdlm")
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("error: `--rows`: expected some of sdml, ")
    status, said = run_study("batch_size_scaling", "bench")
    assert status == 1
    assert said == "error: expected flags only, got 'bench'; did you mean --bench?\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "flags", "names"),
    [
        ("paper_tables", ("--rows=bm25,sdml", "--seeds=2"), {"bm25", "sdml", "sdml-seed1"}),
        ("batch_size_scaling", ("--sizes=32,64", "--rules=mask"), {"n_32_mask", "n_64_mask"}),
        ("distillation", ("--rows=pairs,tfidf",), {"pairs", "tfidf"}),
        ("losses_by_task", ("--rows=ranking,multitask_sum",), {"ranking", "multitask_sum"}),
    ],
)
def test_a_study_is_tried_at_tiny_shapes(module, flags, names, run_study, tmp_path):
    status, said = run_study(module, "--smoke", *flags)
    assert status == 0, said
    reports = (tmp_path / "runs" / "rows").glob("*/report.json")
    assert {path.parent.name for path in reports} == names
    assert (tmp_path / "results" / "README.md").exists()
    assert "next" not in run_study(module, "--smoke", *flags)[1]


@pytest.mark.slow
def test_a_study_of_logs_is_tried_at_tiny_shapes(run_study, tmp_path):
    logs = tmp_path / "data" / "qa_logs"
    logs.mkdir(parents=True)
    write_rows(logs / "all.jsonl", log_rows())
    flags = ("openqa_tables", "--smoke", "--coherence=pairwise")
    status, said = run_study(*flags, data=tmp_path / "data")
    assert status == 0, said
    rows = tmp_path / "runs" / "rows" / "pairwise"
    names = {path.parent.name for path in rows.glob("*/report.json")}
    assert names == {"openqa_sdml"} | {row[1] for row in openqa_tables.OPEN_DOMAIN[5].rows}
    # All rows have the same clusters.
    counts = [
        json.loads((rows / name / "report.json").read_text())["data"]["distant_supervision"]
        for name in ("sdml", "openqa_sdml")
    ]
    assert counts[0] == counts[1]
    assert "next" not in run_study(*flags, data=tmp_path / "data")[1]
