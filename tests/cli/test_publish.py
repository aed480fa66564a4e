import json
import re
import shlex
import shutil

from tests.cli.conftest import QUESTIONS
from tests.runs import keep_row


def test_a_published_model_is_used_by_its_name(qpr, run, tmp_path, monkeypatch):
    status, _, stderr = qpr("publish", run, "--to", "models/mine", "--licence", "mit")
    assert status == 0
    assert stderr.endswith(" models/mine: see its README.md\n")
    card = (tmp_path / "models" / "mine" / "README.md").read_text()
    assert "Not measured on labelled questions." in card
    assert "Of the weights: mit." in card
    lines = "".join(f"{question}\n" for question in list(QUESTIONS.values())[:3])
    monkeypatch.setenv("QPR_MODELS", "models")
    status, _, stderr = qpr("index", "built", "-", "--run", "mine", given=lines.encode())
    assert status == 0, stderr
    status, out, _ = qpr("search", "built", "-", "-k", "1", given=lines.encode())
    assert status == 0
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
        assert shlex.split(command) == ["qpr", "index", f"--run={name}"]
    for name in ("minilm", "a\nb", "bad\udcff"):  # names that no card can say
        assert qpr("publish", run, "--to", name)[0] == 1


def test_a_run_that_is_not_finished_is_not_published(qpr, run, tmp_path):
    shutil.copytree(run, tmp_path / "cut")
    (tmp_path / "cut" / "run.json").write_text("{}")
    status, _, stderr = qpr("publish", "cut", "--to", "mine")
    assert (status, "without a report" in stderr) == (1, True)


def test_scores_of_another_encoder_are_left_out(qpr, run, tmp_path):
    shutil.copytree(run, tmp_path / "other")
    keep_row(tmp_path, "row", 0.5)
    shutil.copy(tmp_path / "row" / "ranks.npz", tmp_path / "other" / "ranks.npz")
    (tmp_path / "other" / "run.json").write_text("{}")
    (tmp_path / "other" / "report.json").write_text('{"encoder": "another"}')
    assert qpr("publish", "other", "--to", "mine")[0] == 0
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "Not measured on labelled questions." in card
    assert "Not stated." in card


def test_a_published_model_is_no_index(qpr, run):
    assert qpr("publish", run, "--to", "mine")[0] == 0
    for command in ("add mine -", "search mine -", "compact mine", "remove mine --id 1"):
        status, out, stderr = qpr(*command.split(), given=b"how\n")
        assert (status, out, "mine has no index/" in stderr) == (1, "", True)
