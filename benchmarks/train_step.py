"""The train step on the Quora pairs, side by side with a plain convolution over every token.

    python -m benchmarks.train_step [--filters=300] [--batch_size=512]

Both take the same batches in the same length blocks, in turns, in one process. The plain one
unfolds the windows and multiplies them with the kernel, token by token.
"""

from __future__ import annotations

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.configs import quora_sdml
from qpr_jax.data.sources import find_quora
from qpr_jax.encoders.cnn import ConvEncoder
from qpr_jax.training.batches import make_batch, pairs_of_step, plan_shapes, steps_per_epoch
from qpr_jax.training.loop import make_encoder
from qpr_jax.training.mesh import make_mesh, replicated, split
from qpr_jax.training.prepare import prepare
from qpr_jax.training.step import init_state, make_loss, make_train_step

ROUNDS, STEPS = 6, 10


class PlainEncoder(ConvEncoder):
    """The same function, with a product for every token of every window."""

    def encode_blocks(self, distinct, blocks):
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
    parser.add_argument("--filters", type=int, default=quora_sdml.get_config().filters)
    parser.add_argument("--batch_size", type=int, default=512)
    arguments = parser.parse_args()

    config = quora_sdml.get_config()
    config.filters, config.batch_size = arguments.filters, arguments.batch_size
    prepared = prepare(config, find_quora())
    pairs = prepared.splits.pairs["train"]
    mesh = make_mesh(config.batch_size)
    epoch = steps_per_epoch(len(pairs), config.batch_size)
    pairs_at = pairs_of_step(pairs, config.batch_size, seed=0)
    shapes = plan_shapes(prepared.questions, pairs_at, devices=mesh.size, steps=epoch)
    start = time.perf_counter()
    batches = [
        jax.device_put(
            make_batch(prepared.questions, pairs_at(i), shapes, devices=mesh.size), split(mesh)
        )
        for i in range(STEPS)
    ]
    layout = (time.perf_counter() - start) / STEPS
    encoder, params = make_encoder(config, prepared.vocabulary.size)
    model = nnx.merge(encoder, params)
    model.__class__ = PlainEncoder
    graphs = {"distinct words": encoder, "every token": nnx.split(model)[0]}
    optimizer = optax.adam(config.learning_rate)

    states, steps, times = {}, {}, {}
    for name, graph in graphs.items():
        copied = jax.tree.map(jnp.copy, params)
        states[name] = jax.device_put(init_state(copied, optimizer), replicated(mesh))
        steps[name] = make_train_step(make_loss(graph, mesh, smoothing=0.3), optimizer)
        times[name] = []
    for number in range(ROUNDS):
        for name in graphs:
            start = time.perf_counter()
            for batch in batches:
                states[name], metrics = steps[name](states[name], batch)
            loss = float(metrics["loss"])
            if number:  # the first round compiles
                times[name].append((time.perf_counter() - start) / STEPS)
            print(f"round {number}, {name}: loss {loss:.5f}")

    tokens = np.mean([sum(int((b > 0).sum()) for b in batch.blocks) for batch in batches])
    distinct = np.mean([int((batch.distinct > 0).sum()) for batch in batches])
    print(f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, {mesh.size} device(s)")
    print(
        f"{config.filters} filters, {config.batch_size} pairs: {tokens:,.0f} words a batch, "
        f"{distinct:,.0f} distinct; laid out on {shapes[0].tokens:,} positions and "
        f"{shapes[0].distinct:,} distinct words a device in {1e3 * layout:.1f} ms"
    )
    medians = {name: float(np.median(values)) for name, values in times.items()}
    for name, seconds in medians.items():
        print(
            f"{name}: {1e3 * seconds:.1f} ms a step, {config.batch_size / seconds:,.0f} pairs/s, "
            f"{epoch * seconds:.0f} s an epoch"
        )
    print(f"ratio {medians['every token'] / medians['distinct words']:.2f}")


if __name__ == "__main__":
    main()
