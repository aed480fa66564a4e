import numpy as np
import pytest

from experiments.configs import synthetic_sdml_smoke
from qpr_jax.errors import UserError
from qpr_jax.training.feed import make_feed
from qpr_jax.training.prepare import prepare


@pytest.fixture(scope="module")
def config():
    config = synthetic_sdml_smoke.get_config()
    config.sampling = "clusters"
    config.word_dropout = 0.2
    config.hard_negatives = 8
    return config


@pytest.fixture(scope="module")
def prepared(config):
    return prepare(config, None)


def questions_of(batch, devices):
    """(words of the query, of its candidate, cluster) of all pairs, (words, cluster) of extras."""
    distinct, order = np.split(batch.distinct, devices), np.split(batch.order, devices)
    clusters = np.split(batch.clusters, devices)
    pairs, extras = [], []
    for device in range(devices):
        rows = [r for b in batch.blocks for r in np.split(b, devices)[device].tolist()]
        texts = [
            tuple(batch.words[distinct[device][w]] for w in rows[at] if w) for at in order[device]
        ]
        n = len(texts) - len(clusters[device])
        pairs += zip(texts[:n], texts[n : 2 * n], clusters[device][:n].tolist(), strict=True)
        extras += zip(texts[2 * n :], clusters[device][n:].tolist(), strict=True)
    return pairs, extras


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_batch_holds_the_same_words_on_any_number_of_devices(config, prepared, devices):
    one, many = make_feed(config, prepared, devices=1), make_feed(config, prepared, devices=devices)
    for step in (0, 5, 13):
        expected = questions_of(one.batch_at(step), 1)
        assert questions_of(many.batch_at(step), devices) == expected
    assert len(expected[0]) == 32
    assert len(expected[1]) == 8


def test_a_batch_is_a_function_of_the_step(config, prepared):
    feed, again = (make_feed(config, prepared, devices=1) for _ in range(2))
    ahead = [questions_of(feed.batch_at(step), 1) for step in range(4)]
    assert questions_of(again.batch_at(3), 1) == ahead[3]
    assert ahead[0] != ahead[1]


def test_pairs_share_the_cluster_that_the_loss_is_told(config, prepared):
    feed = make_feed(config, prepared, devices=1)
    draw = feed.draw_at(2)
    clusters = prepared.clusters[draw.pairs]
    np.testing.assert_array_equal(clusters[:, 0], clusters[:, 1])
    told = np.concatenate([clusters[:, 1], prepared.clusters[draw.extras]])
    np.testing.assert_array_equal(feed.batch_at(2).clusters, told)


def test_hard_negatives_that_devices_cannot_share_are_named(config, prepared):
    with pytest.raises(UserError, match=r"`hard_negatives`: expected a multiple of 3"):
        make_feed(config, prepared, devices=3)
