import collections
import dataclasses

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.config import load_config, override
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.phases import BatchLoader


@pytest.fixture(scope="module")
def config():
    config = load_config("synthetic_sdml:smoke")
    config.batch.sampling = "clusters"
    config.batch.token_dropout = 0.2
    config.batch.hard_negatives = 8
    return config


@pytest.fixture(scope="module")
def dataset(config):
    return load_dataset(config, None)


def questions_of(batch, devices):
    """(words of the query, of its candidate, cluster) of all pairs, (words, cluster) of extras."""
    distinct, order = np.split(batch.unique_ids, devices), np.split(batch.order, devices)
    clusters = np.split(batch.clusters, devices)
    pairs, extras = [], []
    for device in range(devices):
        rows = [r for b in batch.blocks for r in np.split(b, devices)[device].tolist()]
        texts = [tuple(distinct[device][w] for w in rows[at] if w) for at in order[device]]
        n = len(texts) - len(clusters[device])
        pairs += zip(texts[:n], texts[n : 2 * n], clusters[device][:n].tolist(), strict=True)
        extras += zip(texts[2 * n :], clusters[device][n:].tolist(), strict=True)
    return pairs, extras


def test_a_batch_holds_the_same_words_on_any_number_of_devices(config, dataset):
    one, many = (BatchLoader(config, dataset, devices=count) for count in (1, 8))
    for step in (0, 5, 13):
        expected = questions_of(one.batch_at(step), 1)
        assert questions_of(many.batch_at(step), 8) == expected
    assert len(expected[0]) == 32
    assert len(expected[1]) == 8


def test_hard_negatives_that_devices_cannot_share_are_named(config, dataset):
    with pytest.raises(UserError, match=r"`batch.hard_negatives`: expected a multiple of 3"):
        BatchLoader(config, dataset, devices=3)


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


def test_contrastive_losses_need_pairs_that_are_not_the_same(config, dataset):
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
