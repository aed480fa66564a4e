"""The train step on the Quora pairs, compared with a plainer one.

    python -m benchmarks.train_step [--filters=300] [--batch_size=512]

Both read the same batches in the same length blocks and alternate in one process. "every token"
multiplies the kernel with the unfolded windows of every token, where ours multiplies it with each
distinct token once.
"""

from __future__ import annotations

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qpr_jax.data.sources import find_quora
from qpr_jax.models.cnn import ConvEncoder
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.distributed import make_mesh, replicate, split_over
from qpr_jax.training.loader import BatchLoader
from qpr_jax.training.losses_config import loss_terms
from qpr_jax.training.phases import init_model
from qpr_jax.training.train_step import init_state, make_loss, make_optimizer, make_train_step

ROUNDS, STEPS, LOADED = 6, 10, 200


class PlainEncoder(ConvEncoder):
    """The same function, computed with a product for every token of every window."""

    def encode_blocks(self, distinct, blocks, **_):
        features = []
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            width, window, filters = kernel.shape
            flat = kernel[...].transpose(1, 0, 2).reshape(window * width, filters)
            pooled = []
            for block in blocks:
                embedded = jnp.where((block > 0)[:, :, None], self.embedding[distinct[block]], 0)
                left = window // 2
                padded = jnp.pad(embedded, ((0, 0), (left, window - 1 - left), (0, 0)))
                length = block.shape[1]
                unfolded = jnp.concatenate([padded[:, k : k + length] for k in range(window)], 2)
                own = (block > 0) | (jnp.arange(length)[None] == 0)
                scores = jnp.where(own[:, :, None], unfolded @ flat, -jnp.inf)
                pooled.append(scores.max(axis=1))
            features.append(jnp.tanh(jnp.concatenate(pooled) + bias[...][None]))
        return jnp.concatenate(features, axis=1) @ self.projection[...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", type=int, default=load_config("quora_sdml").encoder.filters)
    parser.add_argument("--batch_size", type=int, default=512)
    arguments = parser.parse_args()

    config = load_config("quora_sdml")
    config.encoder.filters, config.batch_size = arguments.filters, arguments.batch_size
    dataset = load_dataset(config, find_quora())
    mesh = make_mesh()
    feed = BatchLoader(config, dataset, devices=mesh.size)
    batches = [feed.batch_at(i) for i in range(STEPS)]
    shape = feed.layout.shapes[0]
    made = []
    for i in range(LOADED):
        start = time.perf_counter()
        split_over(feed.batch_at(i), mesh)
        made.append(time.perf_counter() - start)
    tokens = np.mean([sum(int((b > 0).sum()) for b in batch.blocks) for batch in batches])
    distinct = np.mean([int((batch.unique_ids > 0).sum()) for batch in batches])
    batches = [split_over(batch, mesh) for batch in batches]

    encoder, params = init_model(config, dataset)
    plain = nnx.merge(encoder, params)
    plain.__class__ = PlainEncoder
    objective = loss_terms(config)
    loss = make_loss(encoder, mesh, objective)
    plain_loss = make_loss(nnx.split(plain)[0], mesh, objective)
    optimizer = make_optimizer(config.optimizer.learning_rate)
    variants = {
        "ours": make_train_step(loss, optimizer, seed=0),
        "every token": make_train_step(plain_loss, optimizer, seed=0),
    }
    states, times = {}, {name: [] for name in variants}
    for name in variants:
        copied = jax.tree.map(jnp.copy, params)
        states[name] = replicate(init_state(copied, optimizer), mesh)
    for number in range(ROUNDS):
        for name, step in variants.items():
            start = time.perf_counter()
            for batch in batches:
                states[name], metrics = step(states[name], batch)
            value = float(metrics["loss"])
            if number:  # the first round compiles
                times[name].append((time.perf_counter() - start) / STEPS)
            print(f"round {number}, {name}: loss {value:.5f}")

    print(f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, {mesh.size} device(s)")
    print(
        f"{config.encoder.filters} filters, {config.batch_size} pairs: {tokens:,.0f} tokens "
        f"a batch, {distinct:,.0f} distinct; laid out on {shape.positions:,} positions "
        f"and {shape.unique_ids:,} distinct tokens a device; drawn, laid out and placed "
        f"in {1e3 * float(np.median(made)):.2f} ms"
    )
    medians = {name: float(np.median(values)) for name, values in times.items()}
    for name, seconds in medians.items():
        print(
            f"{name}: {1e3 * seconds:.1f} ms a step, {config.batch_size / seconds:,.0f} pairs/s, "
            f"{feed.epoch * seconds:.0f} s an epoch, {seconds / medians['ours']:.2f} times ours"
        )


if __name__ == "__main__":
    main()
