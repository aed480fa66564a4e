import numpy as np
import pytest

from qpr_jax.training.batches import BatchShape, lay_out, lengths_of, plan_shapes

VOCABULARY = 200


def questions(count=500, longest=30, seed=0):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.15, count) - 1, longest)  # some are empty
    words = rng.integers(1, VOCABULARY, (count, longest)).astype(np.int32)
    words[np.arange(longest) >= lengths[:, None]] = 0
    return words


def words_of_steps(words, rows, devices, seed=1):
    """step -> the words of random questions on each device."""

    def at(step):
        chosen = np.random.default_rng([seed, step]).integers(0, len(words), (devices, rows))
        return words[chosen]

    return at


def rows_of(batch, devices):
    """The word ids of each question of a batch, as they were given."""
    distinct = np.split(batch.unique_ids, devices)
    order = np.split(batch.order, devices)
    return [
        [
            [distinct[device][word] for word in row if word]
            for row in (
                [
                    row
                    for block in batch.blocks
                    for row in np.split(block, devices)[device].tolist()
                ][at]
                for at in order[device]
            )
        ]
        for device in range(devices)
    ]


def without_padding(words):
    return [[[w for w in row if w] for row in share] for share in words.tolist()]


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_batch_holds_each_question_whole_and_in_order(devices):
    words_at = words_of_steps(questions(), 256 // devices, devices)
    shapes = plan_shapes(words_at, steps=4, vocabulary_size=VOCABULARY)
    assert len(shapes[0].blocks) == (2 if devices == 8 else 8)
    for step in range(8):
        words = words_at(step)
        clusters = np.arange(words.shape[0] * 70, dtype=np.int32).reshape(devices, 70)
        batch = lay_out(words, clusters, shapes, vocabulary_size=VOCABULARY)
        assert rows_of(batch, devices) == without_padding(words)
        assert batch.clusters.tolist() == clusters.ravel().tolist()
        arrays = (batch.unique_ids, batch.order, *batch.blocks)
        assert all(array.dtype == np.int32 for array in arrays)


def test_a_batch_that_fits_no_plan_takes_the_shape_that_holds_any():
    words = questions()
    shapes = plan_shapes(words_of_steps(words, 64, 1), steps=18, vocabulary_size=VOCABULARY)
    longest = words[lengths_of(words).argmax()]
    odd = np.tile(longest, (1, 64, 1))
    batch = lay_out(odd, np.zeros((1, 16), np.int32), shapes, vocabulary_size=VOCABULARY)
    assert [block.shape for block in batch.blocks] == [(64, 30)]
    assert rows_of(batch, 1) == without_padding(odd)


def test_blocks_pad_much_less_than_one_width_for_all():
    tight, roomy, certain = plan_shapes(
        words_of_steps(questions(count=5000), 256, 1), steps=2, vocabulary_size=VOCABULARY
    )
    assert len(tight.blocks) <= 8
    assert sum(rows for rows, _ in tight.blocks) == 256
    assert tight.positions < 0.5 * certain.positions
    assert tight.positions <= roomy.positions <= certain.positions
    assert certain == BatchShape(((256, 30),), VOCABULARY)
