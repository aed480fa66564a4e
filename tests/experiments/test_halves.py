"""The figure of a half, and the file that is trained on."""

import numpy as np
import pytest

from experiments.halves import average_precision, write_half
from qpr_jax.data.question_pairs import read_question_pairs
from tests.tables import write_table


class Length:
    def encode(self, questions):
        return np.array([[len(question)] for question in questions], np.float32)


def test_the_figure_is_the_average_precision_of_all_pairs():
    """The nearest pair is of two clusters, then comes a true one, then one of each kind."""
    questions, clusters = ["a", "abc", "abcd", "abcdefg"], np.array([0, 0, 1, 1])
    assert average_precision(Length(), questions, clusters) == pytest.approx((1 / 2 + 2 / 4) / 2)


def test_a_half_has_the_pairs_of_its_questions_alone(tmp_path):
    rows = [("a", "b", 1), ("b", "c", 0), ("c", "d", 1)]
    path = write_table(tmp_path / "pairs.csv", ("question1", "question2", "is_duplicate"), rows)
    data = read_question_pairs(path)
    write_half(tmp_path / "half.tsv", data, np.isin(data.questions, ["a", "b", "c"]))
    half = read_question_pairs(tmp_path / "half.tsv")
    assert (half.questions, half.is_duplicate.tolist()) == (["a", "b", "c"], [True, False])
