"""Generated logs, whose bytes a seed decides."""

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.data.question_pairs import transitive_clusters
from qpr_jax.data.splits import SPLITS, split_by_cluster
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.pair_examples import contrasts, negated, opposite, other_number


def test_sizes():
    data = synthetic_pairs(clusters=1500)
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(data, clusters, held_out_pairs=300)
    sizes = np.bincount(clusters[clusters >= 0])
    assert (len(sizes), sizes.min(), sizes.max()) == (1500, 2, 6)
    assert 4700 < len(data.questions) < 5300
    assert len({normalized_text(question) for question in data.questions}) == len(data.questions)
    assert (clusters < 0).sum() == 600
    assert (~data.is_duplicate).sum() == 1500
    assert all(len(splits.pairs[name]) and len(splits.non_duplicates[name]) for name in SPLITS)
    for few in (1, 2, 10):
        data = synthetic_pairs(clusters=few)
        found = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
        assert found.max() + 1 == few
    for count in (0, 10**6):
        with pytest.raises(UserError, match=r"`data.max_rows`: expected 1 to 23,404 clusters, got"):
            synthetic_pairs(clusters=count)


def test_one_seed_one_log_in_any_process():
    log = synthetic_pairs(clusters=50)
    text = repr((log.questions, log.pairs.tolist()))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("bdca9bff821adfed")
    assert synthetic_pairs(seed=1, clusters=50).questions != log.questions


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
    assert opposite("is it enabled", rng) == "is it disabled"
    assert opposite("enabling it", rng) == "disabling it"
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
