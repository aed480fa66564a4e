import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from qpr_jax.errors import UserError
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.training import device_memory
from qpr_jax.training.batch_layout import Batch, BatchShape
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.distributed import make_mesh
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.overrides import override
from qpr_jax.training.train_step import init_state, make_loss, make_train_step

VOCABULARY = 20_000
SHAPE = BatchShape(((3072, 8), (3072, 12), (2048, 24)), distinct=4096, words=4096)


def settings(**changes):
    result = TrainConfig()
    result = override(result, {"batch_size": 4096} | changes)
    return result


def shape_of(size):
    """Fewer words in smaller batches."""
    part = size / 4096
    blocks = tuple((max(1, int(part * rows)), width) for rows, width in SHAPE.blocks)
    words = int(part**0.5 * SHAPE.words)
    return BatchShape(blocks, words, words)


def estimated(changed, devices=1):
    return device_memory.estimated(changed, SHAPE, devices=devices, vocabulary_size=VOCABULARY)


def planned_by_xla(changed):
    """Bytes of temporaries and of the state."""
    encoder, params = nnx.split(
        nnx.eval_shape(
            lambda: ConvEncoder(
                vocabulary_size=VOCABULARY,
                filters=changed.encoder.filters,
                kernel_sizes=changed.encoder.kernel_sizes,
                rngs=nnx.Rngs(0),
            )
        )
    )
    state = jax.eval_shape(lambda: init_state(jax.tree.map(jnp.zeros_like, params)))
    loss = make_loss(
        encoder, make_mesh(4096, 1), loss_terms(changed), encode_chunk=changed.batch.encode_chunk
    )
    questions = sum(rows for rows, _ in SHAPE.blocks)
    batch = Batch(
        *(jnp.zeros(SHAPE.words, jnp.int32), jnp.zeros(SHAPE.distinct, jnp.int32)),
        tuple(jnp.zeros(block, jnp.int32) for block in SHAPE.blocks),
        jnp.zeros(questions, jnp.int32),
        jnp.zeros(questions // 2, jnp.int32),
        jnp.zeros(0, jnp.int32),
        jnp.zeros((questions, 0)),
    )
    step = make_train_step(loss, 1e-3, seed=0).step
    plan = step.lower(state, batch).compile(compiler_options={"xla_backend_optimization_level": 0})
    return plan.memory_analysis().temp_size_in_bytes, sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder.filters": 300},
        {"encoder.filters": 300, "batch.encode_chunk": 512},
        {"encoder.kernel_sizes": (1, 3), "encoder.filters": 100, "loss.symmetric": True},
        {"encoder.filters": 50, "loss.distance": "euc"},
        {"encoder.filters": 50, "loss.prior": "distance", "loss.symmetric": True},
        {"encoder.filters": 50, "loss.names": ("triplet",), "loss.negatives": "hard"},
        {"encoder.filters": 50, "loss.names": ("ranking",), "loss.symmetric": True},
        {
            "encoder.filters": 50,
            "loss.names": ("ranking",),
            "loss.similarity": "dot",
            "loss.prior": "distance",
        },
    ],
    ids=str,
)
def test_the_estimate_is_close_to_what_xla_plans(changes):
    changed = settings(**changes)
    found = estimated(changed)
    temporaries, state = planned_by_xla(changed)
    assert found.state == pytest.approx(state, rel=0.01)
    assert 0.75 < (found.encoder + found.loss) / temporaries < 1.6


def test_what_is_shared_by_more_devices_takes_less_of_each():
    one, eight = (estimated(settings(**{"loss.distance": "euc"}), devices) for devices in (1, 8))
    assert eight.state == one.state
    assert eight.loss < one.loss


def refuse(limit, devices=1, sharing=1, **changes):
    return device_memory.refuse_too_large(
        settings(**changes),
        shape_of,
        devices=devices,
        sharing=sharing,
        vocabulary_size=VOCABULARY,
        limit=int(limit * device_memory.GIB),
    )


@pytest.mark.parametrize(
    ("limit", "changes", "remedy"),
    [
        (0.5, {}, "set `--config.batch.encode_chunk=4096`, or train"),
        (
            0.4,
            {},
            "set `--config.batch_size=2048` and `--config.batch.encode_chunk=4096`, or train",
        ),
        (0.4, {"batch.encode_chunk": 256}, "set `--config.batch_size=2048`, or train"),
        (0.4, {"batch.encode_chunk": 9999}, "set `--config.batch_size=2048`, or train"),
        (
            0.09,
            {},
            "lower `--config.text.vocabulary_size`, `--config.text.hash_bins` or `--config.encoder.embedding_dim`",
        ),
        (
            1,
            {"encoder.embedding_dim": 10**8},
            "lower `--config.text.vocabulary_size`, `--config.text.hash_bins` or",
        ),
        (
            1,
            {"encoder.kernel_sizes": (10**6,)},
            "lower `--config.encoder.filters`, `--config.encoder.kernel_sizes` or",
        ),
        (
            1,
            {"encoder.output_dim": 10**8},
            "lower `--config.encoder.output_dim` or `--config.encoder.filters`",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_what_would(monkeypatch, limit, changes, remedy):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(UserError, match=re.escape(remedy)) as caught:
        refuse(limit, **({"encoder.filters": 1200} | changes))
    found = dict(re.findall(r"--config\.(\w+)=(\d+)", str(caught.value)))
    if found:  # it would indeed
        refuse(limit, filters=1200, **(changes | {key: int(v) for key, v in found.items()}))


def test_devices_that_share_a_machines_memory_need_it_together():
    assert sum(refuse(1.0, devices=8)) < device_memory.GIB
    with pytest.raises(
        UserError, match=r"needs about \d\.\d GiB of memory, and 1\.0 GiB"
    ) as caught:
        refuse(1.0, devices=8, sharing=8)
    assert "more devices" not in str(caught.value)


def test_this_machine_has_some_memory():
    assert 2**27 < device_memory.available(jax.devices()[0]) < 1 << 62
