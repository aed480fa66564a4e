"""Contrasts: texts that differ in one word and mean something else."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpr_jax.data.contrasts import contrasts, negated, opposite, other_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Can I log in?", "Can I not log in?"),
        ("How do I pay?", "How do I not pay?"),
        ("I can not log in", "I can log in"),
        ("Is delivery free?", ""),  # "Is it not free?" asks the same
        ("Isn't it free?", ""),
        ("I cannot log in", "I can log in"),
        ("I can\u2019t log in", "I can log in"),
        ("Why doesn't it start?", "Why does it start?"),
        ("Why is it not here?", ""),  # two negations would cancel
        ("log in", ""),
    ],
)
def test_a_negation_is_added_or_taken_away(text, expected):
    assert negated(text) == expected


def test_one_word_becomes_an_opposite_and_one_number_another():
    rng = random.Random(0)
    assert opposite("Enable 2FA", rng) == "Disable 2FA"
    days = ("Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    assert opposite("here on Monday", rng) in {f"here on {day}" for day in days}
    assert 10 < int(other_number("size 10", rng).removeprefix("size ")) <= 13
    assert opposite("no such word", rng) == other_number("v2, 007, 1st or 3.5", rng) == ""


@given(st.text(), st.integers(0, 100))
def test_contrasts_of_any_text_differ_from_it(text, seed):
    found = contrasts(text, random.Random(seed))
    assert len(found) <= 3
    assert text not in found
    assert all(found)
