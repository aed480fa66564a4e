"""Batches hold what is drawn for them, whole and in order, on any number of devices."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.batches import Loader, lengths_of
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.objectives import make_objectives

DRAWS = {"batch.sampling": "clusters"}


@pytest.fixture(scope="module")
def config():
    return load_config("synthetic_sdml:smoke", DRAWS | {"batch.token_dropout": 0.2})


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


def loader_of(config, dataset, devices):
    return Loader(config, dataset, make_objectives(config, dataset), devices=devices)


def texts_of(tokens, order):
    """The questions of both devices, in order: the rows of the table that each token sums."""
    found = []
    for device in range(2):
        share = jax.tree.map(lambda array, at=device: np.split(array, 2)[at].tolist(), tokens)
        sums = [[row] if row else [] for row in share.unique_ids]
        for row, token in zip(share.part_rows, share.part_tokens, strict=True):
            if row:  # else it is padding
                sums[token].append(row)
        rows = [row for block in share.blocks for row in block]
        found.append([[sorted(sums[t]) for t in rows[at] if t] for at in order[device]])
    return found


def test_a_batch_that_fits_no_plan_takes_a_shape_that_holds_more_or_any():
    half = {"text.subwords": True, "text.vocabulary_size": 100}  # of the words have a row
    config = override(load_config("synthetic_sdml:smoke"), DRAWS | half)
    dataset = load_dataset(config, None)
    loader = loader_of(config, dataset, 2)
    layout = loader.layout
    tight = [(2 * rows, width) for rows, width in layout.shapes[0].blocks]
    for step in range(make_objectives(config, dataset)[0].draw.epoch):
        planned, _ = loader.load(step)
        assert [block.shape for block in planned.tokens.blocks] == tight
    odd = dataset.token_ids[:64].reshape(2, 32, -1)
    odd[1] = dataset.token_ids[lengths_of(dataset.token_ids).argmax()]  # the other could take less
    # The worst: each token a sum, and all of the longest.
    sums = dataset.tokenizer.size + np.arange(odd.size) % dataset.parts.tokens
    worst = sums.reshape(odd.shape).astype(np.int32)
    parts = np.split(dataset.parts.rows, dataset.parts.offsets[1:-1])
    table = [*([row] for row in range(dataset.tokenizer.size)), *map(sorted, parts)]
    for token_ids, shape in zip((odd, worst), layout.shapes[1:], strict=True):
        tokens, order = layout.pad(token_ids)
        assert [block.shape for block in tokens.blocks] == [(2 * r, w) for r, w in shape.blocks]
        texts = [[[table[t] for t in row if t] for row in share] for share in token_ids.tolist()]
        assert texts_of(tokens, order) == texts


def with_losses(config, losses, **changes):
    return override(config, {"loss.names": losses.replace("+", ","), **changes})


def test_a_batch_of_labelled_pairs_is_told_which_mean_the_same(config, dataset):
    config = with_losses(config, "contrastive")
    loader, epoch = loader_of(config, dataset, 4), make_objectives(config, dataset)[0].draw.epoch
    data, splits = dataset.data, dataset.splits
    same = data.pairs[data.is_duplicate]
    same = same[(splits.split_of[same] == 0).all(axis=1)]
    duplicates = collections.Counter(map(tuple, same.tolist()))
    drawn = {1: collections.Counter(), 0: collections.Counter()}
    for step in range(epoch):
        rows, facts = loader.draw(step)
        batch, metrics = loader.load(step)
        assert (rows.keys(), metrics) == ({"left", "right"}, {})
        np.testing.assert_array_equal(batch.facts["labels"], facts["labels"])
        for *pair, label in zip(*rows.values(), facts["labels"].tolist(), strict=True):
            drawn[label][tuple(pair)] += 1
    assert drawn[0].total() + drawn[1].total() == epoch * config.batch_size
    assert epoch < drawn[1].total()
    assert drawn[1] <= duplicates
    assert {*drawn[0]} <= {*map(tuple, splits.non_duplicates["train"].tolist())}


def test_several_losses_have_a_batch_of_either_data(config, dataset):
    both = loader_of(with_losses(config, "sdml+triplet+contrastive"), dataset, 2)
    assert both.pairs == 2 * config.batch_size
    for step in (0, 37):
        rows, facts = both.draw(step)
        for loss in ("sdml", "contrastive"):
            alone = loader_of(with_losses(config, loss), dataset, 1).draw(step)
            for found, expected in zip((rows, facts), alone, strict=True):
                for name, array in expected.items():
                    np.testing.assert_array_equal(found[name], array)
        batch, _ = both.load(step)
        assert [*map(len, batch.rows.values())] == [32, 32, 32, 32]
        np.testing.assert_array_equal(batch.facts["labels"], facts["labels"])


def test_what_cannot_be_batched_is_named(config, dataset):
    with pytest.raises(UserError, match=r"`batch_size`: expected a multiple of 3"):
        loader_of(config, dataset, 3)
    none = {"train": np.zeros((0, 2), np.int32)}
    splits = dataclasses.replace(dataset.splits, non_duplicates=none)
    few = dataclasses.replace(dataset, splits=splits)
    changed = with_losses(config, "contrastive")
    with pytest.raises(UserError, match=r"`loss.names`: contrastive reads pairs labeled as non"):
        loader_of(changed, few, 1)


def test_no_two_steps_of_a_training_drop_the_same_tokens(config, dataset):
    """Objectives count their own steps; dropout counts those of the whole training."""
    (first,) = make_objectives(config, dataset)
    second = first._replace(steps=range(3, 9))
    loaders = [Loader(config, dataset, [o], devices=1) for o in (first, second)]
    starts = (0, 3)
    drawn = [loader.draw(start)[0] for loader, start in zip(loaders, starts, strict=True)]
    assert (drawn[0]["queries"] == drawn[1]["queries"]).all()
    ids = [loader.load(at)[0].tokens.unique_ids for loader, at in zip(loaders, starts, strict=True)]
    assert ids[0].tolist() != ids[1].tolist()
