"""Runs published, and two runs side by side: `publish` and `errors`."""

import json
import re
import shlex
import shutil

import pytest

from qpr_jax import Retriever
from tests.cli.conftest import QUESTIONS
from tests.runs import keep_row, write_encoder


def test_a_published_model_is_used_by_its_name(done, run, tmp_path, monkeypatch):
    _, stderr = done("publish", run, "--to", "models/mine", "--licence", "mit")
    assert stderr.endswith(" models/mine: see its README.md\n")
    card = (tmp_path / "models" / "mine" / "README.md").read_text()
    assert "Not measured on labelled questions." in card
    assert "Of the weights: mit." in card
    lines = "".join(f"{question}\n" for question in list(QUESTIONS.values())[:3])
    monkeypatch.setenv("QPR_MODELS", "models")
    _, stderr = done("index", "built", "-", "--encoder", "mine", given=lines.encode())
    out, _ = done("search", "built", "-", "-k", "1", given=lines.encode())
    assert [json.loads(line)["question"] for line in out.splitlines()] == lines.splitlines()


def test_the_card_of_any_name_can_be_followed(qpr, run, tmp_path, monkeypatch):
    monkeypatch.setenv("QPR_MODELS", str(tmp_path / "models"))
    for name in ("it's two", 'a"b', "a\\b", "-x", "naïve"):
        status, _, stderr = qpr("publish", run, "--to", f"models/{name}")
        assert (status, "its card states no license; publish it with" in stderr) == (0, True)
        card = (tmp_path / "models" / name / "README.md").read_text()
        python = card.partition("```python\n")[2].partition("```")[0]
        exec(python)
        command = re.search(r"of millions: (.*)", python)[1]
        assert shlex.split(command) == ["qpr", "index", f"--encoder={name}"]
    for name in ("minilm", "a\nb", "bad\udcff"):  # names that no card can say
        assert qpr("publish", run, "--to", name)[0] == 1


def test_a_run_needs_a_report_and_scores_of_another_encoder_are_left_out(
    refused, done, run, tmp_path
):
    shutil.copytree(run, tmp_path / "other")
    keep_row(tmp_path, "row", 0.5)
    shutil.copy(tmp_path / "row" / "ranks.npz", tmp_path / "other" / "ranks.npz")
    (tmp_path / "other" / "run.json").write_text("{}")
    refused("without a report", "publish", "other", "--to", "mine")
    (tmp_path / "other" / "report.json").write_text('{"encoder": "another"}')
    done("publish", "other", "--to", "mine")
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "Not measured on labelled questions." in card
    assert "Not stated." in card


WAYS = ("how can i {}", "what is the best way to {}", "how do people {} in 2016?", "I {}. How?")
THINGS = ("learn python", "cook rice", "mend a bike", "not sleep", "<script>alert(1)</script>")
TEXTS = [way.format(thing) for thing in THINGS for way in WAYS]
ASKED = {10 * i + 7: text for i, text in enumerate(TEXTS)}


def make_run(folder, seed, questions=ASKED):
    write_encoder(folder, seed)
    Retriever.build([*questions.values()], [*questions], encoder=folder).save(folder)
    return folder


@pytest.fixture
def runs(tmp_path):
    """Two runs of other encoders on the same questions, in another order; splits in the first."""
    first = make_run(tmp_path / "first", 0)
    second = make_run(tmp_path / "second", 1, dict(reversed(ASKED.items())))
    (first / "splits").mkdir()
    ids = [*ASKED]
    pairs = [(a, b) for i in range(0, 20, 4) for a in ids[i : i + 4] for b in ids[i : i + 4]]
    lines = [f"{a}\t{b}\n" for a, b in pairs if a < b]
    (first / "splits" / "test.tsv").write_text("id1\tid2\n" + "".join(lines))
    (first / "splits" / "validation.tsv").write_text("id1\tid2\n7\t17\n")
    (first / "splits" / "train.tsv").write_text("id1\tid2\n")
    return first, second


def test_two_runs_side_by_side(done, runs, tmp_path):
    out, stderr = done("errors", *runs, "--out", "made/errors.json")
    assert out == ""
    value = json.loads((tmp_path / "made" / "errors.json").read_text())
    assert value["runs"] == [*map(str, runs)]
    assert value["queries"] == 15
    assert "unseen" in value["groups"]
    both = [all(answer["failed"] for answer in case["answers"]) for case in value["failing"]]
    assert f"both at {sum(both)}\n" in stderr


def test_runs_that_cannot_be_compared(refused, runs, tmp_path):
    first, _ = runs
    other = make_run(tmp_path / "other", 0, {**ASKED, 7: "another"})
    refused("another one for id 7", "errors", first, other, "--out", "e.md")
    assert not (tmp_path / "e.md").exists()
