import jax.numpy as jnp
import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.batches import (
    BatchShape,
    Questions,
    make_batch,
    pairs_of_step,
    plan_shapes,
    steps_per_epoch,
)


def log_of(count=500, longest=30, vocabulary=200, seed=0):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.15, count) - 1, longest)  # some are empty
    words = rng.integers(1, vocabulary, (count, longest)).astype(np.int32)
    words[np.arange(longest) >= lengths[:, None]] = 0
    pairs = rng.integers(0, count, (300, 2)).astype(np.int32)
    return Questions.of(words, vocabulary), pairs


def rows_of(batch, devices):
    """The word ids of each question of a batch, in the order of the pairs: queries, candidates."""
    distinct = np.split(batch.distinct, devices)
    order = np.split(batch.order, devices)
    result = []
    for device in range(devices):
        rows = [
            distinct[device][row].tolist()
            for block in batch.blocks
            for row in np.split(block, devices)[device]
        ]
        result.append([[w for w in rows[at] if w] for at in order[device]])
    return result


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_batch_holds_each_question_whole_in_the_order_of_the_pairs(devices):
    questions, pairs = log_of()
    pairs_at = pairs_of_step(pairs, 64, seed=1)
    shapes = plan_shapes(questions, pairs_at, devices=devices, steps=4)
    for step in range(8):
        chosen = pairs_at(step)
        batch = make_batch(questions, chosen, shapes, devices=devices)
        expected = [
            [[w for w in questions.words[i].tolist() if w] for i in share.T.ravel()]
            for share in np.split(chosen, devices)
        ]
        assert rows_of(batch, devices) == expected
        assert all(array.dtype == np.int32 for array in (batch.distinct, *batch.blocks))


def test_a_batch_that_fits_no_plan_takes_the_shape_that_holds_any():
    questions, pairs = log_of()
    pairs_at = pairs_of_step(pairs, 16, seed=0)
    shapes = plan_shapes(questions, pairs_at, devices=1, steps=18)
    longest = int(questions.lengths.argmax())
    odd = np.full((16, 2), longest, np.int32)
    batch = make_batch(questions, odd, shapes, devices=1)
    assert [block.shape for block in batch.blocks] == [(32, 30)]
    assert rows_of(batch, 1) == [[questions.words[longest].tolist()] * 32]


def test_blocks_pad_much_less_than_one_width_for_all():
    questions, pairs = log_of(count=5000)
    tight, roomy, certain = plan_shapes(
        questions, pairs_of_step(pairs, 128, seed=0), devices=1, steps=2
    )
    assert len(tight.blocks) <= 8
    assert sum(rows for rows, _ in tight.blocks) == 256
    assert tight.tokens < 0.5 * certain.tokens
    assert tight.tokens <= roomy.tokens <= certain.tokens
    assert certain == BatchShape(((256, 30),), 200)


def test_an_epoch_is_a_permutation_and_a_function_of_seed_and_epoch():
    pairs = np.arange(20, dtype=np.int32).reshape(10, 2)
    at = pairs_of_step(pairs, 3, seed=5)
    first, second = ([at(epoch * 3 + i) for i in range(3)] for epoch in range(2))
    for epoch in (first, second):
        drawn = np.concatenate(epoch)[:, 0].tolist()
        assert len(set(drawn)) == 9
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(pairs_of_step(pairs, 3, seed=5)(4), second[1])
    assert not np.array_equal(pairs_of_step(pairs, 3, seed=6)(0), first[0])


def test_an_empty_question_has_one_position():
    questions = Questions.of(np.zeros((2, 3), np.int32), 5)
    assert questions.lengths.tolist() == [1, 1]
    assert questions.distinct(np.array([0, 1])).tolist() == [0]


def test_fewer_pairs_than_a_batch_are_refused():
    with pytest.raises(UserError, match=r"`batch_size` 512 training pairs, got 100 pairs; lower"):
        steps_per_epoch(100, 512)


def test_batches_are_arrays_that_jax_takes_as_they_are():
    questions, pairs = log_of()
    pairs_at = pairs_of_step(pairs, 16, seed=0)
    batch = make_batch(
        questions, pairs_at(0), plan_shapes(questions, pairs_at, devices=1, steps=2), devices=1
    )
    assert jnp.asarray(batch.order).shape == (32,)
