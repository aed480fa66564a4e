"""The programs of examples/ run as their docstrings say."""

import runpy
import shlex

import pytest
from starlette.testclient import TestClient

from qpr_jax import Retriever
from qpr_jax.encoders.load import FORMATS
from tests.runs import ROOT, run_python, write_encoder

EXAMPLES = ROOT / "examples"


def test_deduplicate_dataframe(capsys):
    runpy.run_path(str(EXAMPLES / "deduplicate_dataframe.py"), run_name="__main__")
    pairs, rows = capsys.readouterr().out.split("ticket ")
    assert "0  T-1  T-4  1.000" in pairs  # a copy
    kept = [row.split() for row in rows.splitlines()[1:]]
    assert [(words[0], words[-1]) for words in kept] == [("T-2", "3"), ("T-3", "1"), ("T-5", "1")]


def test_custom_encoder(capsys):
    try:
        runpy.run_path(str(EXAMPLES / "custom_encoder.py"), run_name="__main__")
    finally:
        assert FORMATS.pop("hashed trigrams 1")
    assert "How do I reset my password?" in capsys.readouterr().out


def test_fastapi_app(tmp_path, monkeypatch):
    write_encoder(tmp_path)
    asked = ["how can i cook rice", "what is python"]
    Retriever.build(asked, payload=[{"url": "u"}, None], encoder=tmp_path).save(tmp_path)
    monkeypatch.setenv("QPR_INDEX", str(tmp_path))
    make_app = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))["make_app"]
    with TestClient(make_app()) as client:
        (hit,) = client.get("/similar", params={"question": asked[0], "k": 1}).json()
        assert (hit["id"], hit["question"], hit["payload"]) == (0, asked[0], {"url": "u"})
        new = {"text": "why is the sky blue", "id": "sky"}
        assert client.post("/questions", json=new).json() == "sky"
        assert client.get("/similar", params={"question": new["text"]}).json()[0]["id"] == "sky"
        refused = client.post("/questions", json=new | {"id": -1})
        assert (refused.status_code, len(refused.json()["detail"].splitlines())) == (422, 1)
        assert client.get("/similar", params={"question": "a", "k": 51}).status_code == 422
    assert len(Retriever.load(tmp_path)) == 3


@pytest.mark.slow
def test_custom_loss(tmp_path):
    command = ("-W", "error", EXAMPLES / "custom_loss.py", "runs/hinge")
    assert "test: hits@1 0." in run_python(*command, folder=tmp_path)[0]
    # Programs that do not know the loss search with the encoder.
    assert len(Retriever.load(tmp_path / "runs" / "hinge").search(["how to cook"], k=3)[0]) == 3


@pytest.mark.slow
def test_multi_host_training(tmp_path):
    command = ("-W", "error", EXAMPLES / "multi_host_training.py", "hosts", "2")
    printed = run_python(*command, folder=tmp_path)[0]
    commands = [shlex.split(line) for line in printed.splitlines() if line.startswith("JAX_")]
    assert [words[3:6] for words in commands] == [["qpr", "train", "hosts"]] * 2
    assert [f"JAX_PROCESS_ID={i}" in commands[i] for i in range(2)] == [True, True]
    assert len(Retriever.load(tmp_path / "hosts")) > 100
