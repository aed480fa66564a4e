"""Pairs scored by a cross-encoder."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from qpr_jax.reranking.cross_encoder import read_cross_encoder, save_cross_encoder

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
