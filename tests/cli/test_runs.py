"""Runs published, and queries that fail: `publish` and `errors`."""

import csv
import json
import re
import shlex
import shutil

from qpr_jax import Retriever
from qpr_jax.data.splits import SPLITS
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


def test_the_queries_that_fail(done, refused, tmp_path):
    run = tmp_path / "mine"
    asked = [way.format(thing) for thing in THINGS for way in WAYS]
    write_encoder(run, 0)
    Retriever.build(asked, encoder=run).save(run)
    (run / "splits").mkdir()
    for name in SPLITS:
        pairs = [f"{i}\t{i + 1}\n" for i in range(0, 20, 4)]
        (run / "splits" / f"{name}.tsv").write_text("id1\tid2\n" + "".join(pairs))
    out, _ = done("errors", run, "--out", "made/errors.csv")
    with open(tmp_path / "made" / "errors.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert out.splitlines()[2].startswith(f"| all | 5 | {len(rows)}")
    assert all(row["query"] in asked and row["first_id"] != row["expected_id"] for row in rows)
    (run / "splits" / "validation.tsv").write_text("id1\tid2\n0\t99\n")
    refused("question 99 is not in the", "errors", run, "--split", "validation", "--out", "e.csv")
    assert not (tmp_path / "e.csv").exists()
