"""Batches with tokens that are sums of rows of the embedding table."""

import jax
import numpy as np
import pytest

from qpr_jax.training.batches import lay_out, plan_shapes
from tests.parts import make_parts
from tests.training.test_batch_layout import VOCABULARY, questions, words_of_steps

RNG = np.random.default_rng(5)
SUMS = [RNG.integers(1, VOCABULARY, n).tolist() for n in RNG.integers(1, 9, 150)]
SUMS[3] = [7, 7, 7]  # a row several times
PARTS = make_parts(SUMS)


def mixed(words, share=0.3, seed=2):
    """Replace some words by tokens that are sums."""
    rng = np.random.default_rng(seed)
    sums = VOCABULARY + rng.integers(0, PARTS.tokens, words.shape)
    return np.where((words > 0) & (rng.random(words.shape) < share), sums, words).astype(np.int32)


def embeddings_of(batch, devices, table):
    """The embedding of each token of each question of a batch, as the encoder computes it."""
    distinct = np.split(batch.unique_ids, devices)
    order = np.split(batch.order, devices)
    sums = (np.split(part, devices) for part in batch.sums)
    found = []
    for device, rows, tokens in zip(range(devices), *sums, strict=True):
        embedded = table[distinct[device]]
        np.add.at(embedded, tokens, table[rows])
        blocks = [row for block in batch.blocks for row in np.split(block, devices)[device]]
        found.append([embedded[blocks[at][blocks[at] > 0]] for at in order[device]])
    return found


def expected_embeddings(words, table):
    sums = [table[rows].sum(axis=0) for rows in SUMS]
    rows = np.stack([*table, *sums])
    return [[rows[row[row > 0]] for row in share] for share in words]


def assert_equal(found, expected):
    for share, other in zip(found, expected, strict=True):
        for row, same in zip(share, other, strict=True):
            np.testing.assert_array_equal(row, same)


def integer_table():
    """Sums of integers have no rounding; row 0 is padding."""
    table = np.random.default_rng(0).integers(-1000, 1000, (VOCABULARY, 3)).astype(np.float64)
    table[0] = 0
    return table


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_each_token_has_its_embedding_on_any_number_of_devices(devices):
    words_at = words_of_steps(mixed(questions()), 128 // devices, devices)
    shapes = plan_shapes(words_at, steps=4, vocabulary_size=VOCABULARY, parts=PARTS)
    table, none = integer_table(), np.zeros((devices, 0), np.int32)
    for step in range(6):
        words = words_at(step)
        batch = lay_out(words, none, shapes, vocabulary_size=VOCABULARY, parts=PARTS)
        assert_equal(embeddings_of(batch, devices, table), expected_embeddings(words, table))
        assert all(part.dtype == np.int32 for part in batch.sums)
        assert (np.split(batch.unique_ids, devices)[0][0]) == 0


def test_the_last_shape_holds_the_worst_batch():
    """Each token another sum, all of the longest."""
    long = make_parts([[*range(1, 60)]] * 40)
    words = np.zeros((2, 8, 5), np.int32)
    words[:, :, 0] = 1
    shapes = plan_shapes(lambda step: words, steps=1, vocabulary_size=VOCABULARY, parts=long)
    worst = VOCABULARY + np.arange(80).reshape(2, 8, 5) % 40
    none = np.zeros((2, 0), np.int32)
    batch = lay_out(worst.astype(np.int32), none, shapes, vocabulary_size=VOCABULARY, parts=long)
    assert [len(part) // 2 for part in batch.sums] == [40 * 59] * 2
    table = integer_table()
    total = table[1:60].sum(axis=0)
    for share in embeddings_of(batch, 2, table):
        assert_equal([share], [[np.tile(total, (5, 1))] * 8])


def test_own_shares_are_those_of_all():
    words = words_of_steps(mixed(questions()), 16, 4)(0)
    shapes = plan_shapes(lambda step: words, steps=1, vocabulary_size=VOCABULARY, parts=PARTS)
    none = np.zeros((4, 0), np.int32)
    given = {"vocabulary_size": VOCABULARY, "parts": PARTS}
    whole = lay_out(words, none, shapes, **given)
    halves = [lay_out(words, none, shapes, own=own, **given) for own in (slice(0, 2), slice(2, 4))]
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *halves)
    jax.tree.map(np.testing.assert_array_equal, joined, whole)
