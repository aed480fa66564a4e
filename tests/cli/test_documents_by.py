"""`qpr index --documents-by`, and what the other commands do with such an index."""

import dataclasses
import json

import numpy as np
import pytest

from qpr_jax.encoders.cnn_encoder import read_cnn
from qpr_jax.encoders.load import read_encoder, save_encoder
from tests.cli.conftest import JSONL
from tests.runs import write_reranker


@pytest.fixture
def folder(qpr, run, tmp_path):
    student = read_cnn(run / "export")
    kernels = tuple((1.01 * kernel).astype(np.float32) for kernel in student.kernels)
    save_encoder(tmp_path / "teacher" / "export", dataclasses.replace(student, kernels=kernels))
    (tmp_path / "questions.jsonl").write_text(JSONL)
    how = ("index", "mine", "questions.jsonl", "--run", run, "--documents-by", "teacher")
    status, _, stderr = qpr(*how, "--dry-run")
    assert status == 0, stderr
    assert not (tmp_path / "mine").exists()
    status, _, stderr = qpr(*how)
    assert status == 0, stderr
    assert "two encoders: 100% of 4 questions find themselves" in stderr
    return tmp_path / "mine"


def test_each_command_uses_the_right_encoder(qpr, folder, run, tmp_path):
    students, teachers = (read_encoder(p / "export").identity for p in (run, tmp_path / "teacher"))
    assert qpr("remove", folder, "--id", 2**63 - 1)[0] == 0
    new = b'{"question": "what is rye", "id": 7}\n'
    status, _, stderr = qpr("add", folder, "--format", "jsonl", given=new)
    assert status == 0, stderr
    facts = json.loads(qpr("info", folder)[1])
    assert (facts["encoder"], facts["documents_by"]) == (students, teachers)
    assert (facts["questions"], facts["added"], facts["removed"]) == (4, 1, 1)
    for command in ("compact", "search"):
        more = ("--query", "what is rye", "-k", 1) if command == "search" else ()
        status, out, stderr = qpr(command, folder, *more)
        assert status == 0, stderr
    assert json.loads(out)["id"] == 7
    (tmp_path / "pairs.tsv").write_text("question\tid\nhow to cook rice?\t8\n")
    status, out, stderr = qpr("evaluate", folder, "pairs.tsv")
    assert status == 0, stderr
    assert json.loads(out)["hits@1"] == 1.0
    assert qpr("publish", folder, "--to", "public")[0] == 0
    assert read_encoder(tmp_path / "public").identity == students


def test_what_does_not_fit_is_one_line(qpr, folder, run, tmp_path):
    labeled = "question1\tquestion2\tis_duplicate\n" + "how to cook rice?\tcook rice\t1\n" * 2
    (tmp_path / "labeled.tsv").write_text(labeled)
    write_reranker(folder)
    assert json.loads(qpr("info", folder)[1])["rerankers"] == {}
    negatives = ("negatives", folder, "labeled.tsv", "--out", "n.tsv", "--relative-margin", 0.5)
    index = ("index", "other", "questions.jsonl", "--run", run, "--documents-by", "none")
    refused = {
        (
            "search",
            folder,
            "--query",
            "a",
            "--rerank",
            "light",
        ): "which the light re-ranker has not "
        "learned; search without, or build the index without `--documents-by`",
        negatives: "whose questions another one encoded; leave out `--relative-margin`",
        index: "error: `--documents-by`: expected a run or an index, found none at none",
    }
    for command, line in refused.items():
        status, _, stderr = qpr(*command)
        assert status == 1
        assert line in stderr.splitlines()[-1]
    assert qpr("index", folder, "questions.jsonl", "--run", run)[0] == 0
    assert json.loads(qpr("info", folder)[1])["documents_by"] is None
    assert not [*folder.glob("documents-*")]
