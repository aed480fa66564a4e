"""Each loss of the registry with its options, its float64 reference, and batches to compare on."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from qpr_jax.losses import batch_loss, distillation_loss, listwise_loss, mean_loss
from qpr_jax.training.objectives import LOSSES, reads
from tests.losses import references

TAUGHT = {"distillation": distillation_loss, "listwise": listwise_loss}
SPLIT, WHOLE = PartitionSpec("data"), PartitionSpec()


class Case(NamedTuple):
    name: str
    options: dict[str, Any]
    reference: Callable[..., Any]

    @property
    def reads(self):
        if self.name in TAUGHT:
            return self.name
        return "labeled" if reads(self.name, "labels") else "pairs"

    def loss(self, *arrays, axis_name=None):
        """The loss of a batch: for pairs, `arrays` are queries, candidates and clusters."""
        options = dict(self.options)
        of_batch = batch_loss if self.reads == "pairs" else mean_loss
        more = {name: options.pop(name) for name in ("symmetric",) if name in options}
        loss = functools.partial(TAUGHT.get(self.name) or LOSSES[self.name], **options)
        return of_batch(loss, *arrays, axis_name=axis_name, **more)

    def expected(self, *arrays):
        return references.evaluate(self.reference, *arrays, **self.options)

    def __str__(self):
        return "-".join([self.name, *map(str, self.options.values())])


def _cases(name, reference, *options):
    return [Case(name, each, reference) for each in options]


CASES = [
    *_cases(
        "sdml",
        references.sdml,
        {},
        {"symmetric": True, "smoothing": 0.2},
        {"smoothing": 0.0},
        {"smoothing": 1.0},
        {"distance": "euc", "symmetric": True},
    ),
    *_cases(
        "ranking",
        references.ranking,
        {},
        {"symmetric": True, "smoothing": 0.2},
        {"similarity_scale": 2.0},
    ),
    *_cases(
        "triplet",
        references.triplet,
        {"negatives": "hard", "distance": "ssd", "margin": 0.9},
        {"negatives": "hard_anchor", "distance": "euc", "margin": 0.9},
    ),
    *_cases("contrastive", references.contrastive, {"margin": 0.5}),
    *_cases("online_contrastive", references.online_contrastive, {"margin": 1.2}),
    *_cases("distillation", references.distillation, {}),
    *_cases("listwise", references.listwise, {}),
]
PAIRS = [case for case in CASES if case.reads == "pairs"]


def pairs(n, m, d, offset=0.0, dtype=np.float32):
    """n queries, m candidates of which the first n are paraphrases, and m clusters."""
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(n, d))
    candidates = np.concatenate([queries, rng.normal(size=(m - n, d))])
    candidates += 0.5 * rng.normal(size=(m, d))
    clusters = rng.integers(-1, n // 3, size=m, dtype=np.int32)
    x, y = (jnp.asarray(2 / np.sqrt(d) * side + offset, dtype) for side in (queries, candidates))
    return x, y, clusters


def batch_of(case, n, d, extra=0, dtype=np.float32):
    """A batch of what the loss reads."""
    x, y, clusters = pairs(n, n + extra, d, dtype=dtype)
    if case.reads == "pairs":
        return x, y, clusters
    if case.reads == "labeled":
        return x, y[:n], np.arange(n) % 3 == 0
    if case.reads == "listwise":
        lists = jnp.stack([x[::-1], y[:n], 2 * y[:n]], axis=1)
        return x, lists, np.random.default_rng(1).normal(size=(n, 3)).astype(dtype)
    return x, y[:n]


def value(case, *arrays):
    """The loss; queries and candidates are traced, and clusters or labels are not."""
    return jax.jit(lambda x, y: case.loss(x, y, *arrays[2:]))(*arrays[:2])


def value_and_gradients(case):
    return jax.jit(jax.value_and_grad(case.loss, argnums=(0, 1)))


def over_devices(loss, count, arrays, check_vma=True):
    """Value and gradients of a global batch, split over devices; pairs first, then extra ones."""
    n = len(arrays[0])
    parts = [[array[:n], array[n:]] if len(array) > n else [array] for array in arrays]

    def share(*parts):
        joined = (jnp.concatenate(part) for part in parts)
        return loss(*joined, axis_name="data")

    mapped = jax.shard_map(
        share,
        mesh=Mesh(np.array(jax.devices()[:count]), ("data",)),
        in_specs=SPLIT,
        out_specs=WHOLE,
        check_vma=check_vma,
    )

    def whole(first, second):
        split = [[a[:n], a[n:]] if len(a) > n else [a] for a in (first, second)]
        return mapped(*split, *parts[2:])

    return jax.jit(jax.value_and_grad(whole, argnums=(0, 1)))(*arrays[:2])


def check(got, expected, tolerance=1e-5):
    """A value and its gradients are the reference's, a scalar and finite."""
    value, gradients = got
    assert value.shape == ()
    assert abs(float(value) - expected[0]) <= tolerance * (1 + abs(expected[0]))
    for have, want in zip(gradients, expected[1:], strict=True):
        assert np.isfinite(have).all()
        assert np.abs(have - want).max() <= tolerance * np.abs(want).max()
