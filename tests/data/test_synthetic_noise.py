import math

import numpy as np
import pytest

from qpr_jax.data.splits import SPLITS
from qpr_jax.data.synthetic import generate_noisy_log, meeting_chance
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

PAIRS, BATCH = 1500, 64


def measured_rate(log, epochs=20):
    """The share of rows of random batches that have an unknown paraphrase in their batch."""
    queries = log.splits.pairs["train"][:, 0]
    rng, shares = np.random.default_rng(0), []
    for _ in range(epochs):
        order = rng.permutation(queries)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            meaning, cluster = log.meanings[batch], log.clusters[batch]
            unknown = (meaning[:, None] == meaning) & (cluster[:, None] != cluster)
            shares.append(unknown.any(axis=1).mean())
    return np.mean(shares)


@pytest.mark.parametrize("rate", [0.0, 0.03, 0.1, 0.25, 0.5, 0.8])
def test_the_batches_drawn_have_the_rate(rate):
    # 20 epochs of 23 batches; rows of a batch go together, so the error is that of batches.
    log = generate_noisy_log(rate, pairs=PAIRS, batch_size=BATCH)
    assert measured_rate(log) == pytest.approx(rate, abs=0.02)


def test_a_chance_by_hand():
    # Of 9 others, 3 are drawn beside a pair; none of 2 of them is there by chance 6 * 5 / (9 * 8).
    assert meeting_chance(2, 10, 4) == pytest.approx(1 - math.comb(7, 3) / math.comb(9, 3))
    assert meeting_chance(0, 10, 4) == 0
    assert meeting_chance(9, 10, 4) == 1


def test_the_rate_changes_nothing_but_what_is_known():
    logs = [generate_noisy_log(rate, pairs=PAIRS, batch_size=BATCH) for rate in (0.0, 0.2, 0.5)]
    for log in logs[1:]:
        assert log.data.questions == logs[0].data.questions
        np.testing.assert_array_equal(log.meanings, logs[0].meanings)
        for split in SPLITS:
            np.testing.assert_array_equal(log.splits.pairs[split], logs[0].splits.pairs[split])
    known = [len(np.unique(log.clusters[: 2 * PAIRS])) for log in logs]
    assert known[0] < known[1] < known[2] <= PAIRS
    # With none, what is known is the truth.
    assert len(np.unique(logs[0].meanings[: 2 * PAIRS])) == known[0]


def test_a_log_is_sound():
    log = generate_noisy_log(0.3, pairs=PAIRS, batch_size=BATCH, seed=3)
    questions = log.data.questions
    assert len({*map(normalized_text, questions)}) == len(questions)
    for i, split in enumerate(SPLITS):
        pairs = log.splits.pairs[split]
        assert len(pairs) > 100
        assert (log.splits.split_of[pairs] == i).all()
        np.testing.assert_array_equal(log.clusters[pairs[:, 0]], log.clusters[pairs[:, 1]])
        np.testing.assert_array_equal(log.meanings[pairs[:, 0]], log.meanings[pairs[:, 1]])
    held_out = log.splits.split_of > 0
    # Held-out meanings are known whole, and train nowhere.
    assert not {*log.meanings[held_out]} & {*log.meanings[~held_out]}
    for cluster in np.unique(log.clusters[held_out]):
        of_cluster = log.clusters == cluster
        (meaning,) = {*log.meanings[of_cluster]}
        assert ((log.meanings == meaning) == of_cluster).all()
    assert (log.clusters == -1).sum() == round(0.4 * PAIRS)
    assert (
        log.data.questions != generate_noisy_log(0.3, pairs=PAIRS, batch_size=BATCH).data.questions
    )


@pytest.mark.parametrize(
    ("rate", "pairs", "batch_size", "said"),
    [
        (1.0, 1500, 64, "`data.false_negatives`: expected 0 to 0.9"),
        (0.5, 100_000, 5000, "expected a number that needs at most 32,768 meanings, got one that"),
        (
            0.9,
            20,
            2,
            "expected a rate that 20 pairs allow with batches of 2, got 0.9; raise",
        ),
    ],
)
def test_logs_that_cannot_be(rate, pairs, batch_size, said):
    with pytest.raises(UserError, match=said):
        generate_noisy_log(rate, pairs=pairs, batch_size=batch_size)
