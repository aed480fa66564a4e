"""Generated logs with a chosen rate of false negatives."""

import numpy as np
import pytest

from examples.noisy_log import generate_noisy_log
from qpr_jax import load_config
from qpr_jax.data.splits import SPLITS
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.sources import SOURCES
from tests.refused import check_refused

PAIRS, BATCH = 1500, 64


def measured_rate(log, meanings, epochs=20):
    """The share of rows of random batches that have an unknown paraphrase in their batch."""
    queries = log.splits.pairs["train"][:, 0]
    rng, shares = np.random.default_rng(0), []
    for _ in range(epochs):
        order = rng.permutation(queries)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            meaning, cluster = meanings[batch], log.clusters[batch]
            unknown = (meaning[:, None] == meaning) & (cluster[:, None] != cluster)
            shares.append(unknown.any(axis=1).mean())
    return np.mean(shares)


def test_the_rate_of_noise_changes_nothing_but_what_is_known():
    # 20 epochs of 23 batches; rows of a batch go together, so the error is that of batches.
    logs = {r: generate_noisy_log(r, pairs=PAIRS, batch_size=BATCH) for r in (0, 0.1, 0.5, 0.8)}
    for rate, log in logs.items():
        assert measured_rate(*log) == pytest.approx(rate, abs=0.02)
    for rate in (0.1, 0.5):
        assert logs[rate][0].data.questions == logs[0][0].data.questions
        np.testing.assert_array_equal(logs[rate][1], logs[0][1])
        for split in SPLITS:
            pairs = logs[rate][0].splits.pairs[split], logs[0][0].splits.pairs[split]
            np.testing.assert_array_equal(*pairs)
    # With none, what is known is the truth.
    known = [len(np.unique(logs[rate][0].clusters[: 2 * PAIRS])) for rate in (0, 0.1, 0.5)]
    assert known[0] == len(np.unique(logs[0][1][: 2 * PAIRS]))
    assert known[0] < known[1] < known[2] <= PAIRS


def test_a_noisy_log_is_sound():
    log, meanings = generate_noisy_log(0.3, pairs=PAIRS, batch_size=BATCH, seed=3)
    questions = log.data.questions
    assert len({*map(normalized_text, questions)}) == len(questions)
    for i, split in enumerate(SPLITS):
        pairs = log.splits.pairs[split]
        assert len(pairs) > 100
        assert (log.splits.split_of[pairs] == i).all()
        np.testing.assert_array_equal(log.clusters[pairs[:, 0]], log.clusters[pairs[:, 1]])
        np.testing.assert_array_equal(meanings[pairs[:, 0]], meanings[pairs[:, 1]])
    held_out = log.splits.split_of > 0
    # Held-out meanings are known whole, and train nowhere.
    assert not {*meanings[held_out]} & {*meanings[~held_out]}
    for cluster in np.unique(log.clusters[held_out]):
        of_cluster = log.clusters == cluster
        (meaning,) = {*meanings[of_cluster]}
        assert ((meanings == meaning) == of_cluster).all()
    assert (log.clusters == -1).sum() == round(0.4 * PAIRS)


def test_noise_that_cannot_be():
    check_refused(
        lambda rate, pairs, size: generate_noisy_log(rate, pairs=pairs, batch_size=size),
        (0.5, 100_000, 5000, "at most 32,768 meanings, got one that"),
        (0.9, 20, 2, "a rate that 20 pairs allow with batches of 2, got 0.9; raise"),
    )


def test_a_training_reads_a_noisy_log():
    config = load_config("synthetic_sdml", {"data.source": "noisy_0.1", "data.max_rows": 500})
    log = SOURCES[config.data.source].read(config, None)
    expected, _ = generate_noisy_log(0.1, pairs=500, batch_size=config.batch_size)
    assert log.data.questions == expected.data.questions
    np.testing.assert_array_equal(log.clusters, expected.clusters)
