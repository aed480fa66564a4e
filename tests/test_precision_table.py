"""The program that measures the error of each precision."""

import json
import sys

import numpy as np
import pytest

from benchmarks import precision
from benchmarks.loss import pairs
from tests.losses.references import sdml_reference


def test_the_reference_is_the_formula():
    x, y = (side + np.float32(5) for side in pairs(600, 3))  # more rows than at a time
    value, gradients = precision.reference(x, y)
    expected = sdml_reference(x, y)
    assert value == pytest.approx(expected[0], rel=1e-12)
    for found, expected_gradient in zip(gradients, expected[1:], strict=True):
        np.testing.assert_allclose(found, expected_gradient, atol=1e-12)


@pytest.mark.slow  # compiles steps as a benchmark does
def test_it_measures_and_writes_each_precision(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["precision", "--pairs", "64", "--dim", "32", "--out", str(tmp_path)]
    )
    assert precision.main() == 0
    found = json.loads((tmp_path / "precision.json").read_text())
    assert [row["precision"] for row in found["rows"]] == ["highest", "bf16_3x", "tf32", "bf16"]
    assert [row["emulated"] for row in found["rows"]] == [False, True, True, True]
    for case in precision.CASES:
        gradient = [row["errors"][case]["gradient_norm"] for row in found["rows"]]
        assert gradient[0] < 5e-6
        assert gradient[1] < 1e-4
        assert 2 * gradient[1] < gradient[2]
        assert 2 * gradient[2] < gradient[3] < 0.1
    page = (tmp_path / "precision.md").read_text()
    assert capsys.readouterr().out == page
    assert page.count("| emulated |") == 3
