"""Batches hold what is drawn for them, whole and in order, on any number of devices."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.text.base import NO_PARTS
from qpr_jax.training.batches import BatchShape, lengths_of, plan_layout
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.phases import BatchLoader
from tests.text.plain_ids import make_parts

VOCABULARY = 200
SUMS = [[1 + (7 * i + j) % 199 for j in range(i % 8 + 1)] for i in range(150)]
SUMS[3] = [7, 7, 7]  # a row several times
PARTS = make_parts(SUMS)


def questions(count=500, longest=30, sums=0.0):
    """Token ids of random questions; this share of the tokens are sums."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.15, count) - 1, longest)  # some are empty
    tokens = rng.integers(1, VOCABULARY, (count, longest))
    others = VOCABULARY + rng.integers(0, PARTS.tokens, tokens.shape)
    tokens = np.where(rng.random(tokens.shape) < sums, others, tokens)
    tokens[np.arange(longest) >= lengths[:, None]] = 0
    return tokens.astype(np.int32)


def plan(token_ids_at, steps, parts=NO_PARTS):
    return plan_layout(token_ids_at, steps=steps, vocabulary_size=VOCABULARY, parts=parts)


def steps_of(token_ids, rows, devices):
    """step -> the token ids of random questions on each device."""

    def at(step):
        rng = np.random.default_rng([1, step])
        return token_ids[rng.integers(0, len(token_ids), (devices, rows))]

    return at


def none(devices):
    return np.zeros((devices, 0), np.int32)


def texts_of(batch, devices):
    """The questions of each device, in order: the rows of the table that each token sums."""
    found = []
    for device in range(devices):

        def share(array, device=device):
            return np.split(array, devices)[device].tolist()

        own = jax.tree.map(share, batch)
        tokens = [[row] if row else [] for row in own.unique_ids]
        for row, token in zip(own.part_rows, own.part_tokens, strict=True):
            if row:  # else it is padding
                tokens[token].append(row)
        rows = [row for block in own.blocks for row in block]
        found.append([[sorted(tokens[t]) for t in rows[at] if t] for at in own.order])
    return found


def assert_holds(batch, token_ids, sums=SUMS):
    tokens = [*([row] for row in range(VOCABULARY)), *map(sorted, sums)]
    expected = [[[tokens[t] for t in row if t] for row in share] for share in token_ids.tolist()]
    assert texts_of(batch, len(token_ids)) == expected


@pytest.mark.parametrize(("devices", "sums"), [(1, 0.3), (2, 0), (8, 0.3)])
def test_a_batch_holds_each_question_whole_and_in_order(devices, sums):
    at = steps_of(questions(sums=sums), 256 // devices, devices)
    layout = plan(at, 4, PARTS if sums else NO_PARTS)
    assert len(layout.shapes[0].blocks) == (2 if devices == 8 else 8)
    for step in range(8):
        clusters = np.arange(devices * 70, dtype=np.int32).reshape(devices, 70)
        batch = layout.batch(at(step), clusters)
        assert_holds(batch, at(step))
        assert batch.clusters.tolist() == clusters.ravel().tolist()
        assert (batch.sums is not None) == bool(sums)
        arrays = (batch.unique_ids, batch.order, batch.part_rows, *batch.blocks)
        assert all(array.dtype == np.int32 for array in arrays)


def test_a_batch_that_fits_no_plan_takes_the_shape_that_holds_any():
    token_ids = questions()
    at = steps_of(token_ids, 64, 2)
    odd = at(0).copy()
    odd[1] = token_ids[lengths_of(token_ids).argmax()]  # the other device could take less
    batch = plan(at, 18).batch(odd, none(2))
    assert [block.shape for block in batch.blocks] == [(2 * 64, 30)]
    assert_holds(batch, odd)
    # The worst: each token another sum, all of the longest.
    sums = [[*range(1, 60)]] * 40
    first = np.zeros((2, 8, 5), np.int32)
    first[:, :, 0] = 1
    worst = (VOCABULARY + np.arange(80).reshape(2, 8, 5) % 40).astype(np.int32)
    batch = plan(lambda step: first, 1, make_parts(sums)).batch(worst, none(2))
    assert len(batch.part_rows) == 2 * 40 * 59
    assert_holds(batch, worst, sums)


def test_blocks_pad_much_less_than_one_width_for_all():
    tight, roomy, any_batch = plan(steps_of(questions(5000), 256, 1), 2).shapes
    assert len(tight.blocks) <= 8
    assert sum(rows for rows, _ in tight.blocks) == 256
    assert tight.positions < 0.5 * any_batch.positions
    assert tight.positions <= roomy.positions <= any_batch.positions
    assert any_batch == BatchShape(((256, 30),), VOCABULARY)


@pytest.fixture(scope="module")
def config():
    changes = {"sampling": "clusters", "token_dropout": 0.2, "hard_negatives": 8}
    return load_config(
        "synthetic_sdml:smoke", {f"batch.{name}": value for name, value in changes.items()}
    )


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


def questions_of(batch, devices):
    """(words of the query, of its candidate, cluster) of all pairs, (words, cluster) of extras."""
    pairs, extras = [], []
    shares = np.split(batch.clusters, devices)
    for texts, clusters in zip(texts_of(batch, devices), shares, strict=True):
        n = len(texts) - len(clusters)
        pairs += zip(texts[:n], texts[n : 2 * n], clusters[:n].tolist(), strict=True)
        extras += zip(texts[2 * n :], clusters[n:].tolist(), strict=True)
    return pairs, extras


def test_a_batch_holds_the_same_words_on_any_number_of_devices(config, dataset):
    one, many = (BatchLoader(config, dataset, devices=count) for count in (1, 8))
    for step in (0, 5, 13):
        expected = questions_of(one.batch_at(step), 1)
        assert questions_of(many.batch_at(step), 8) == expected
    assert len(expected[0]) == 32
    assert len(expected[1]) == 8


def with_losses(config, losses, **changes):
    return override(config, {"loss.names": losses.replace("+", ","), **changes})


def test_a_batch_of_labelled_pairs_is_told_which_mean_the_same(config, dataset):
    feed = BatchLoader(with_losses(config, "contrastive"), dataset, devices=4)
    data, splits = dataset.data, dataset.splits
    seen = collections.Counter(
        (*pair, duplicate)
        for pair, duplicate in zip(data.pairs.tolist(), data.is_duplicate.tolist(), strict=True)
        if (splits.split_of[pair] == 0).all()
        and (duplicate or dataset.clusters[pair[0]] != dataset.clusters[pair[1]] != -1)
    )
    drawn = collections.Counter()
    for step in range(feed.epoch):
        draw = feed.indices(step)
        assert len(draw.pairs) == len(draw.extra_candidates) == 0
        np.testing.assert_array_equal(feed.batch_at(step).labels, draw.labels)
        rows = zip(draw.labeled_pairs.tolist(), draw.labels.tolist(), strict=True)
        drawn.update((*pair, bool(label)) for pair, label in rows)
        assert feed.metrics_at(step) == {}
    assert {row[2] for row in drawn} == {False, True}
    assert drawn.total() == feed.epoch * config.batch_size
    assert sum(count for row, count in drawn.items() if row[2]) > feed.epoch
    duplicates = collections.Counter({row: n for row, n in drawn.items() if row[2]})
    assert duplicates <= seen


def test_several_losses_have_a_batch_of_either_data(config, dataset):
    both = BatchLoader(with_losses(config, "sdml+triplet+contrastive"), dataset, devices=2)
    assert both.size == 2 * config.batch_size
    for step in (0, both.epoch + 3):
        draw = both.indices(step)
        read = {"sdml": ("pairs", "extra_candidates"), "contrastive": ("labeled_pairs", "labels")}
        for loss, names in read.items():
            alone = BatchLoader(with_losses(config, loss), dataset, devices=1).indices(step)
            for name in names:
                np.testing.assert_array_equal(getattr(draw, name), getattr(alone, name))
        batch = both.batch_at(step)
        sizes = [len(part) for part in batch.split(np.zeros((len(batch.order), 1)))]
        assert sizes == [32, 40, 32, 32]
        shares = np.split(batch.labels, 2)
        np.testing.assert_array_equal(np.concatenate(shares), draw.labels)


def test_what_cannot_be_batched_is_named(config, dataset):
    with pytest.raises(UserError, match=r"`batch.hard_negatives`: expected a multiple of 3"):
        BatchLoader(config, dataset, devices=3)
    none = {"train": np.zeros((0, 2), np.int32)}
    splits = dataclasses.replace(dataset.splits, non_duplicates=none)
    few = dataclasses.replace(dataset, splits=splits)
    changed = with_losses(config, "contrastive", **{"batch.hard_negatives": 0})
    with pytest.raises(UserError, match=r"`loss.names`: contrastive reads pairs labeled as non"):
        BatchLoader(changed, few, devices=1)


def test_no_two_steps_of_a_training_drop_the_same_tokens(config, dataset):
    """Phases count their own steps; dropout counts those of the whole training."""
    first = BatchLoader(config, dataset, devices=1)
    second = BatchLoader(config, dataset, devices=1, first_step=3)
    assert (first.indices(0).pairs == second.indices(0).pairs).all()
    assert questions_of(first.batch_at(0), 1) != questions_of(second.batch_at(0), 1)
