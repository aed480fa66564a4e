import json

from tests.commands.conftest import QUESTIONS


def test_a_published_model_is_used_by_its_name(qpr, run, tmp_path, monkeypatch):
    status, _, told = qpr("publish", run, "--to", "models/mine", "--licence", "mit")
    assert status == 0
    assert told.endswith(" models/mine: see its README.md\n")
    card = (tmp_path / "models" / "mine" / "README.md").read_text()
    assert "Not measured on labelled questions." in card
    assert "Of the weights: mit." in card
    lines = "".join(f"{question}\n" for question in list(QUESTIONS.values())[:3])
    monkeypatch.setenv("QPR_MODELS", "models")
    status, _, told = qpr("index", "built", "-", "--run", "mine", given=lines.encode())
    assert status == 0, told
    status, out, _ = qpr("search", "built", "-", "-k", "1", given=lines.encode())
    assert status == 0
    assert [json.loads(line)["question"] for line in out.splitlines()] == lines.splitlines()


def test_what_is_there_is_not_overwritten(qpr, run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("work")
    status, _, told = qpr("publish", run, "--to", "mine")
    assert status == 1
    assert told == "error: mine is there already; remove it, or name another folder with `--to`\n"


def test_a_run_without_an_encoder_is_told(qpr, tmp_path):
    status, _, told = qpr("publish", "nothing", "--to", "mine")
    assert status == 1
    assert "`run`: expected the folder of a run, found none at nothing" in told
    assert not (tmp_path / "mine").exists()
