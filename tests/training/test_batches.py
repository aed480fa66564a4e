"""Batches hold what is drawn for them, whole and in order, on any number of devices."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.batches import lengths_of
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.phases import BatchLoader

DRAWS = {"batch.sampling": "clusters", "batch.hard_negatives": 8}


@pytest.fixture(scope="module")
def config():
    return load_config("synthetic_sdml:smoke", DRAWS | {"batch.token_dropout": 0.2})


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


def texts_of(batch):
    """The questions of both devices, in order: the rows of the table that each token sums."""
    found = []
    for device in range(2):
        own = jax.tree.map(lambda array, at=device: np.split(array, 2)[at].tolist(), batch)
        tokens = [[row] if row else [] for row in own.unique_ids]
        for row, token in zip(own.part_rows, own.part_tokens, strict=True):
            if row:  # else it is padding
                tokens[token].append(row)
        rows = [row for block in own.blocks for row in block]
        found.append([[sorted(tokens[t]) for t in rows[at] if t] for at in own.order])
    return found


def test_a_batch_that_fits_no_plan_takes_a_shape_that_holds_more_or_any():
    half = {"text.subwords": True, "text.vocabulary_size": 100}  # of the words have a row
    config = override(load_config("synthetic_sdml:smoke", DRAWS), half)
    dataset = load_dataset(config, None)
    layout, none = BatchLoader(config, dataset, devices=2).layout, np.zeros((2, 0), np.int32)
    no_lists = np.zeros((2, 0, 1), np.float32)
    odd = dataset.token_ids[:72].reshape(2, 36, -1)
    odd[1] = dataset.token_ids[lengths_of(dataset.token_ids).argmax()]  # the other could take less
    # The worst: each token a sum, and all of the longest.
    sums = dataset.tokenizer.size + np.arange(odd.size) % dataset.parts.tokens
    worst = sums.reshape(odd.shape).astype(np.int32)
    parts = np.split(dataset.parts.rows, dataset.parts.offsets[1:-1])
    tokens = [*([row] for row in range(dataset.tokenizer.size)), *map(sorted, parts)]
    for token_ids, shape in zip((odd, worst), layout.shapes[1:], strict=True):
        batch = layout.batch(token_ids, none, none, no_lists, np.zeros((2, 36, 0)), slice(None))
        assert [block.shape for block in batch.blocks] == [(2 * r, w) for r, w in shape.blocks]
        texts = [[[tokens[t] for t in row if t] for row in share] for share in token_ids.tolist()]
        assert texts_of(batch) == texts


def with_losses(config, losses, **changes):
    return override(config, {"loss.names": losses.replace("+", ","), **changes})


def test_a_batch_of_labelled_pairs_is_told_which_mean_the_same(config, dataset):
    feed = BatchLoader(with_losses(config, "contrastive"), dataset, devices=4)
    data, splits = dataset.data, dataset.splits
    same = data.pairs[data.is_duplicate]
    known = collections.Counter(map(tuple, same[(splits.split_of[same] == 0).all(axis=1)].tolist()))
    drawn = {1: collections.Counter(), 0: collections.Counter()}
    for step in range(feed.epoch):
        draw = feed.indices(step)
        assert len(draw.pairs) == len(draw.extra_candidates) == 0
        np.testing.assert_array_equal(feed.batch_at(step).labels, draw.labels)
        for pair, label in zip(draw.labeled_pairs.tolist(), draw.labels.tolist(), strict=True):
            drawn[label][tuple(pair)] += 1
        assert feed.metrics_at(step) == {}
    assert drawn[0].total() + drawn[1].total() == feed.epoch * config.batch_size
    assert feed.epoch < drawn[1].total()
    assert drawn[1] <= known
    assert {*drawn[0]} <= {*map(tuple, splits.non_duplicates["train"].tolist())}


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
        assert sizes == [32, 40, 32, 32, 0]
        np.testing.assert_array_equal(batch.labels, draw.labels)


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
    ids = [loader.batch_at(0).unique_ids.tolist() for loader in (first, second)]
    assert ids[0] != ids[1]
