"""`qpr encode` as a user meets it."""

import numpy as np

from qpr_jax.index.run import run_encoder
from tests.cli.conftest import JSONL, QUESTIONS


def test_encoded_to_a_file(qpr, run, tmp_path):
    (tmp_path / "questions.jsonl").write_text(JSONL)
    status, _, stderr = qpr("encode", run, "questions.jsonl", "--out", "deep/vectors.npy")
    assert status == 0, stderr
    expected = run_encoder(run).encode(list(QUESTIONS.values()))
    np.testing.assert_array_equal(np.load("deep/vectors.npy"), expected)
    assert qpr("encode", run, "--out", "none.npy")[0] == 0
    assert np.load("none.npy").shape == (0, 6)
