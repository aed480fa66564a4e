"""Any study: trials made, killed, resumed, shared between processes, kept; the page rebuilt."""

import dataclasses
import json
import logging
import pathlib
import signal

import pytest

from experiments import (
    batch_size_scaling,
    distillation,
    hard_negatives,
    losses_by_task,
    noise,
    openqa_tables,
    paper_tables,
)
from experiments.study import KeptRows, Study
from experiments.trials import Trial, is_done, load, make_trials, seeded, shrink
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.evaluation.lexical import tfidf_search
from qpr_jax.files import locked, read_json, write_json
from qpr_jax.training.config import flatten, identity
from tests.distant.rows import log_rows, write_rows
from tests.encoders.examples import TINY
from tests.runs import keep_row, keep_tasks

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
        Trial("plain", load("synthetic_sdml"), keep_export=True, kept_steps=5),
        Trial("seeded-seed1", load("synthetic_sdml", seed=1), files={"more.json": interrupt_once}),
        Trial(
            "tfidf",
            load("synthetic_sdml"),
            search=lambda questions: (tfidf_search(questions), {"questions": len(questions)}),
        ),
    ]


def page(kept):
    scores = kept.scores("test", "pair")
    return ["# A study", *(f"{name}: {scores.mean(name)[0]:.4f}" for name in kept.ranks)]


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


def test_trials_resume_are_shared_and_kept_and_the_page_is_rebuilt_from_them(tmp_path, lines):
    results, workdir = tmp_path / "results", tmp_path / "runs" / "trials"
    INTERRUPTED.clear()

    def run(**flags):
        lines.clear()
        return STUDY.run(results=results, workdir=workdir, **flags)

    with locked(workdir / ".tfidf.lock"):  # as if another process made it
        assert run(smoke=True) == 128 + signal.SIGTERM
        assert lines[0] == "3 rows left; next: plain"
        assert {path.name for path in (results / "rows").glob("[!.]*")} == {"plain"}
        assert not (results / "README.md").exists()
        config = results / "rows" / "plain" / "config.json"
        made = config.stat().st_mtime_ns

        assert run(smoke=True) == 0
        assert lines[0].startswith("2 rows left, about ")
        assert lines[0].endswith("next: seeded-seed1")
        assert lines[1] == "tfidf is being made by another process"
    assert config.stat().st_mtime_ns == made
    assert "tfidf" not in (results / "README.md").read_text()

    assert run(smoke=True) == 0
    assert lines[0] == "1 rows left, about 0 minutes of training; next: tfidf"
    folders = {path.name: path for path in (results / "rows").iterdir()}
    assert folders.keys() == {"plain", "seeded-seed1", "tfidf"}
    files = {"config.json", "report.json", "ranks.npz", "evaluations.jsonl", "metrics.jsonl"}
    assert {path.name for path in folders["plain"].iterdir()} == files
    assert {path.name for path in folders["seeded-seed1"].iterdir()} == files | {"more.json"}
    assert "export" in json.loads((folders["seeded-seed1"] / "more.json").read_text())["files"]
    assert len((folders["plain"] / "metrics.jsonl").read_text().splitlines()) == 5
    kept = KeptRows(results)
    reports = kept.read("report.json")
    # The scores of pages, from the ranks of queries, are those of the trial's report.
    for trial, name in (("plain", "plain"), ("seeded-seed1", "seeded")):
        test = reports[trial]["test"]
        for found, over, search in (
            (test["per_pair"], "pair", "index"),
            (test["exact"]["per_query"], "query", "exact"),
        ):
            expected = [found[metric] for metric in ("hits@1", "hits@10", "mrr@20")]
            assert kept.scores("test", over, search).mean(name) == pytest.approx(expected)
    assert reports["tfidf"]["questions"] == reports["plain"]["data"]["questions"]
    assert json.loads((folders["tfidf"] / "config.json").read_text())["search"] == "tfidf"
    assert not (workdir / "seeded-seed1").exists()
    left = {path.name for path in (workdir / "plain").iterdir()}
    assert "export" in left
    assert not left & {"checkpoints", "index"}

    before = (results / "README.md").read_bytes()
    assert before.startswith(b"# A study\nplain: 0.")
    assert b"\nseeded: 0." in before
    (results / "README.md").unlink()
    assert run(rebuild=True) == 0
    assert (results / "README.md").read_bytes() == before
    assert run(smoke=True) == 0
    assert not [line for line in lines if "next" in line]

    with pytest.raises(UserError, match=r"plain: expected `\S+` .*; to train it again, remove"):
        run()  # the same trials at full size


def test_a_trial_that_fails_does_not_keep_the_others_from_being_made(tmp_path, monkeypatch):
    def train(config, run):
        if config.seed == 1:
            raise UserError("expected finite numbers, got nan")
        for file in ("report.json", "run.json", "ranks.npz", "metrics.jsonl", "evaluations.jsonl"):
            run.mkdir(parents=True, exist_ok=True)
            (run / file).write_text('{"step": 0}\n')

    monkeypatch.setattr("qpr_jax.training.main.train_and_evaluate", train)
    config = load("synthetic_sdml")
    made = [
        Trial("fails", load("synthetic_sdml", seed=1)),
        Trial("good", config, group="some"),
        Trial("whole", config, keep_run=True),
    ]
    workdir, results = tmp_path / "runs" / "study", tmp_path / "results"
    failed = make_trials(made, workdir, results, (None, None))
    assert failed == ["fails: expected finite numbers, got nan"]
    assert [path.name for path in (results / "some" / "rows").iterdir()] == ["good"]
    assert [path.name for path in (results / "rows").iterdir()] == ["whole"]
    assert (tmp_path / "runs" / "whole" / "report.json").exists()
    assert not (workdir / "some" / "good").exists()

    study = dataclasses.replace(STUDY, trials=lambda flags: made[:1])
    keep_row(tmp_path / "others", "sdml", 0.5)
    with pytest.raises(UserError, match=r"^1 rows could not be made: fails: expected finite"):
        study.run(results=tmp_path / "others", workdir=workdir)
    assert (tmp_path / "others" / "README.md").read_text().startswith("# A study\n")


def test_a_trial_made_otherwise_is_not_taken_for_done(tmp_path):
    row = tmp_path / "mask"
    config = paper_tables.row_config("mask")
    settings = identity(config)
    assert not is_done(row, settings, "abc")
    kept = json.loads(json.dumps(flatten(config)))
    write_json(row / "config.json", kept | {"data.sha256": "abc"})
    assert is_done(row, settings, "abc")
    with pytest.raises(UserError, match=r"expected `data\.sha256` 'abd', got 'abc'"):
        is_done(row, settings, "abd")
    write_json(row / "config.json", kept | {"data.sha256": "abc", "loss.smoothing": 0.2})
    with pytest.raises(UserError, match=r"expected `loss.smoothing` 0\.3, got 0\.2; .* remove"):
        is_done(row, settings, "abc")
    # A setting that is newer than the trial had the effect of its default.
    old = {key: value for key, value in kept.items() if key != "loss.symmetric"}
    write_json(row / "config.json", old | {"data.sha256": "abc"})
    assert is_done(row, settings, "abc")


def test_rows_scored_on_other_queries_are_refused(tmp_path):
    keep_row(tmp_path, "averaging", 0.6, queries=300)
    keep_row(tmp_path, "mask", 0.6)
    keep_row(tmp_path, "sdml", 0.6)
    for study in (paper_tables.STUDY, noise.STUDY):
        with pytest.raises(UserError, match="averaging: expected the queries of the other rows"):
            study.rebuild(tmp_path)


def test_a_part_of_a_trial_that_a_kill_left_is_not_read(tmp_path):
    keep_row(tmp_path, "sdml", 0.6)
    part = tmp_path / "rows" / ".mask.part" / "ranks.npz"
    part.parent.mkdir()
    part.write_bytes(b"half")
    assert list(KeptRows(tmp_path).ranks) == ["sdml"]


@pytest.mark.parametrize("module", STUDIES, ids=lambda module: module.__name__)
def test_without_any_row_there_is_no_page(module, tmp_path):
    with pytest.raises(UserError, match=r"expected rows.*, found none; run the study without"):
        module.STUDY.run(rebuild=True, results=tmp_path, workdir=tmp_path)
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        (paper_tables, {"rows": ["sdm"]}, "`--rows`: expected some of bm25, .*, got 'sdm'"),
        (paper_tables, {"rows": ["sdml"], "table": "1"}, "`--rows`, `--table`: expected one of"),
        (distillation, {"rows": ["bas"]}, "`--rows`: expected some of .*, got 'bas'"),
        (distillation, {"speed": True, "rebuild": True}, "`--speed`, `--rebuild`: expected one of"),
        (losses_by_task, {"rows": ["sdlm"]}, "`--rows`: expected some of .*, got 'sdlm'"),
        (batch_size_scaling, {"bench": True, "rebuild": True}, "`--bench`, `--rebuild`: expected"),
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
        module.STUDY.run(**{"rebuild": True, "results": tmp_path} | flags)


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


@pytest.mark.parametrize("module", [*STUDIES, hard_negatives], ids=lambda module: module.__name__)
def test_the_kept_trials_have_the_settings_of_today(module):
    """Else a study that is repeated would stop at the first trial that is kept."""
    study = module.STUDY
    results = pathlib.Path(__file__).parent.parent.parent / "results" / study.results
    kept = 0
    for trial in study.trials(study.read_flags({})):
        path = trial.folder(results)
        if (path / "config.json").exists():
            kept += 1
            sha256 = read_json(path / "config.json").get("data.sha256")
            assert is_done(path, trial.settings, sha256)
    assert kept >= 5


def test_an_encoder_that_is_not_trained_is_kept_without_steps(tmp_path):
    changes = {"encoder.kind": "bert", "encoder.pretrained": str(TINY), "max_epochs": 0}
    trial = Trial("as_it_is", shrink(load("synthetic_sdml", changes)))
    assert make_trials([trial], tmp_path / "runs", tmp_path / "results", (None, None)) == []
    kept = tmp_path / "results" / "rows" / "as_it_is"
    assert {path.name for path in kept.iterdir()} == {"config.json", "report.json", "ranks.npz"}
    assert is_done(kept, trial.settings, None)


def test_seeds_are_in_the_name_but_for_the_first():
    assert [seeded("mask", seed) for seed in (0, 1)] == ["mask", "mask-seed1"]


def test_the_program_reads_flags_and_says_one_line(run_study, tmp_path):
    keep_tasks(tmp_path / "results", "sdml")
    status, said = run_study("losses_by_task", "--rebuild", "--rows=sdml,ranking")
    assert status == 0, said
    assert said.endswith(f" see {tmp_path / 'results' / 'README.md'}\n")
    status, said = run_study("batch_size_scaling", "rebuild")
    assert status == 1
    assert said == "error: expected flags only, got 'rebuild'; did you mean --rebuild?\n"


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
    assert {path.name for path in (tmp_path / "results" / "rows").iterdir()} == names
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
    rows = tmp_path / "results" / "pairwise" / "rows"
    names = {path.name for path in rows.iterdir()}
    assert names == {"openqa_sdml"} | {row[1] for row in openqa_tables.OPEN_DOMAIN[5].rows}
    # The whole config is kept as a run; all rows have the same clusters.
    assert (tmp_path / "runs" / "openqa_sdml" / "export").is_dir()
    counts = [
        json.loads((rows / name / "report.json").read_text())["data"]["distant_supervision"]
        for name in ("sdml", "openqa_sdml")
    ]
    assert counts[0] == counts[1]
    assert "next" not in run_study(*flags, data=tmp_path / "data")[1]
