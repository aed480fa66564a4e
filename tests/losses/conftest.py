"""Batches of pairs, and losses of them computed in shares by several devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec


@pytest.fixture(scope="session")
def batch() -> Callable:
    """(n, m, d) -> n queries, m candidates of which the first n are paraphrases, m clusters."""

    def make(n, m, d, *, offset=0.0):
        rng = np.random.default_rng(0)
        queries = rng.normal(size=(n, d))
        candidates = np.concatenate([queries, rng.normal(size=(m - n, d))])
        candidates += 0.5 * rng.normal(size=(m, d))
        clusters = rng.integers(-1, n // 3, size=m, dtype=np.int32)
        scale = 2 / np.sqrt(d)
        x, y = (jnp.asarray(scale * side + offset, jnp.float32) for side in (queries, candidates))
        return x, y, clusters

    return make


@pytest.fixture(scope="session")
def mapped() -> Callable:
    """(loss, devices) -> (queries, candidates, clusters) of a global batch -> value, gradients."""

    def over(loss, devices):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))

        def share(queries, *shares):  # each device has its pairs first, then its extra candidates
            candidates, clusters = (
                None if parts[0] is None else jnp.concatenate(parts)
                for parts in (shares[:2], shares[2:])
            )
            return loss(queries, candidates, clusters=clusters, axis_name="data")

        def whole(queries, candidates, clusters=None):
            n = len(queries)
            shares = [
                None if rows is None else part
                for rows in (candidates, clusters)
                for part in ((None, None) if rows is None else (rows[:n], rows[n:]))
            ]
            return jax.shard_map(
                share,
                mesh=mesh,
                in_specs=(PartitionSpec("data"),) * 5,
                out_specs=PartitionSpec(),
            )(queries, *shares)

        # These tests are of what goes where, and there are many: compile quickly.
        return jax.jit(
            jax.value_and_grad(whole, argnums=(0, 1)),
            compiler_options={"xla_backend_optimization_level": 0},
        )

    return over


@pytest.fixture(autouse=True)
def _as_users_have_them(optimised):
    """What is compiled is optimised."""
