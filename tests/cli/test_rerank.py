"""Pairs scored by a cross-encoder."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from qpr_jax.reranking.cross_encoder import read_cross_encoder, save_cross_encoder
from tests.cli.conftest import QUESTIONS

TINY = pathlib.Path(__file__).parent.parent / "reranking" / "tiny_cross_encoder"
GOLDEN = json.loads((TINY / "golden.json").read_text())
PAIRS = [pair for pair in GOLDEN["pairs"] if "\t" not in "".join(pair)]


def jsonl(pairs):
    rows = (dict(zip(("question1", "question2"), pair, strict=True)) for pair in pairs)
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_pairs_are_scored_in_their_order(qpr, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(jsonl(PAIRS))
    status, out, stderr = qpr("rerank", TINY, "pairs.jsonl")
    assert status == 0, stderr
    rows = [json.loads(line) for line in out.splitlines()]
    assert [[row["question1"], row["question2"]] for row in rows] == PAIRS
    assert [row["score"] for row in rows] == pytest.approx(GOLDEN["scores"], abs=1e-5)
    assert rows[0].keys() == {"question1", "question2", "score"}

    given = b"question2\tquestion1\nrice\tcook\n"
    status, out, _ = qpr("rerank", TINY, "--format", "tsv", "--output", "tsv", given=given)
    header, line = out.splitlines()
    assert header == "question1\tquestion2\tscore"
    assert line.startswith("cook\trice\t0.")


def test_a_run_has_probabilities(qpr, tmp_path):
    model = read_cross_encoder(TINY)
    points = np.array([[0.0, 5.0], [0.25, 0.75]])
    model = dataclasses.replace(model, calibration=points)
    save_cross_encoder(tmp_path / "run" / "export", model)
    status, out, stderr = qpr("rerank", "run", "--format", "jsonl", given=jsonl(PAIRS[:2]).encode())
    assert status == 0, stderr
    rows = [json.loads(line) for line in out.splitlines()]
    assert all(0.25 < row["probability"] < 0.75 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        ((TINY, "pairs.txt"), "", "expected columns question1, question2, got lines of text"),
        ((TINY, "-", "--format", "tsv"), "question1\tother\na\tb\n", "name its columns so"),
        ((TINY, "-", "--format", "jsonl"), '{"question1": "a", "question2": 1}', "two questions"),
        (("none", "pairs.txt"), "", "expected a cross-encoder with config.json"),
    ],
)
def test_what_cannot_be_scored_is_named(qpr, tmp_path, arguments, given, message):
    (tmp_path / "pairs.txt").write_text(next(iter(QUESTIONS.values())))
    status, out, stderr = qpr("rerank", *arguments, given=given.encode())
    assert (status, out) == (1, "")
    assert message in stderr
    assert len(stderr.splitlines()) == 1


def test_an_encoder_is_no_cross_encoder(qpr, run):
    status, _, stderr = qpr("rerank", run, given=b"")
    assert status == 1
    assert "expected a cross-encoder" in stderr
