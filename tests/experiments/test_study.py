"""The runner: trials made, resumed, shared and selected; scores.csv and the page."""

import csv
import signal

import pytest

from experiments.pages import Column, difference, score_table, with_interval
from experiments.scores import Scores
from experiments.study import Study, Trial, make_trials
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import locked

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
def run(tmp_path, train):
    """Run the study in a folder: (**options) -> (exit status, the page, the table)."""

    def call(study=STUDY, **options):
        folders = {"workdir": str(tmp_path / "runs"), "results": str(tmp_path / "results")}
        status = study.run(**{**folders, "train": train, **options})
        page = (tmp_path / "results" / "README.md").read_text()
        return status, page, Scores.read(tmp_path / "results")

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
    with open(tmp_path / "results" / "scores.csv", newline="") as file:
        rows = list(csv.DictReader(file))
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


def test_rows_and_seeds_are_selected(run, train):
    _, page, scores = run(rows="eps_0.3", seeds=3)
    assert train.trained == ["eps_0.3", "eps_0.3-seed1", "eps_0.3-seed2"]
    record = scores.get("eps_0.3", METRIC)
    assert record["seeds"] == 3
    assert record["spread"] > 0
    assert f" ± {record['spread']:.3f} |" in page
    assert "little" not in page
    with pytest.raises(UserError, match=r"unknown row 'eps'; choose of eps_0\.1, eps_0\.3"):
        run(rows="eps")


def test_rows_measured_elsewhere_stay_in_the_table_with_their_command(run, tmp_path):
    _, _, before = run(rows="eps_0.1")
    _, page, after = run(rows="eps_0.3", seeds=2, workdir=str(tmp_path / "elsewhere"))
    assert after.get("eps_0.3", METRIC)["seeds"] == 2
    assert str(after.get("eps_0.1", METRIC)) == str(before.get("eps_0.1", METRIC))
    assert "| little | " in page
    commands = [after.get(row, METRIC)["command"] for row in ("eps_0.1", "eps_0.3")]
    start = "python -m experiments.tiny"
    assert commands == [f"{start} --rows=eps_0.1", f"{start} --rows=eps_0.3 --seeds=2"]


def test_only_what_a_trial_keeps_stays(tmp_path, train):
    made = [Trial("bare", "synthetic_sdml"), Trial("whole", "synthetic_sdml", keep=True)]
    made.append(Trial("noted", make=lambda folder: (folder / "note").write_text("x")))
    assert make_trials(made, tmp_path, train=train) == []
    folders = {
        name: sorted(path.name for path in (tmp_path / name).iterdir())
        for name in ("bare", "whole", "noted")
    }
    assert folders["bare"] == ["ranks.npz", "report.json", "trial.json"]
    assert folders["whole"] == ["export", *folders["bare"]]
    assert folders["noted"] == ["note", "trial.json"]


def test_a_trial_of_other_settings_is_refused(run):
    run(rows="eps_0.1")
    changed = Study(
        **{**vars(STUDY), "trials": lambda _: [Trial("eps_0.1", "synthetic_sdml", {"seed": 0})]}
    )
    with pytest.raises(UserError, match=r"made with `loss.smoothing` 0.1, the study asks for 0.3"):
        run(changed)


def stopping_at(rate, error, train):
    """A trainer that raises at the row of a rate."""

    def stopping(config, folder):
        if config.loss.smoothing == rate:
            raise error
        train(config, folder)

    return stopping


def test_an_interrupted_study_resumes(run, train, tmp_path):
    folders = {"workdir": str(tmp_path / "runs"), "results": str(tmp_path / "results")}
    interrupted = stopping_at(0.3, Interrupted(signal.SIGTERM), train)
    assert STUDY.run(**folders, train=interrupted) == 128 + signal.SIGTERM
    assert not (tmp_path / "results").exists()
    assert run()[0] == 0
    assert train.trained == ["eps_0.1", "eps_0.3"]


def test_a_failed_trial_does_not_stop_the_others(tmp_path, train):
    folders = {"workdir": str(tmp_path / "runs"), "results": str(tmp_path / "results")}
    failing = stopping_at(0.1, UserError("training diverged at step 5"), train)
    with pytest.raises(UserError, match=r"1 trials failed: eps_0\.1: training diverged"):
        STUDY.run(**folders, train=failing)
    assert "| much | 0." in (tmp_path / "results" / "README.md").read_text()


def test_two_processes_share_the_trials(tmp_path, train):
    made = [Trial("one", "synthetic_sdml"), Trial("other", "synthetic_sdml")]
    with locked(tmp_path / ".one.lock"):  # as if another process trained it
        assert make_trials(made, tmp_path, train=train) == []
    assert train.trained == ["other"]


def test_smoke_trains_its_rows_at_tiny_shapes(tmp_path, monkeypatch, train):
    monkeypatch.chdir(tmp_path)
    assert STUDY.run(smoke=True, train=train) == 0
    assert train.trained == ["eps_0.3"]
    assert (tmp_path / "runs" / "tiny_smoke" / "page" / "README.md").exists()
    assert Trial("tiny", "synthetic_sdml").config(smoke=True).max_steps < 20


def test_the_program_reads_its_options(tmp_path, monkeypatch, train):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--rwos"):
        STUDY.run_arguments(["--rwos=a"])
    with pytest.raises(UserError, match=r"unknown row 'x'; choose of eps_0\.1, eps_0\.3, given"):
        STUDY.run_arguments(["--rows=x", "--folder=there"])
