"""A train step on the Quora pairs on CPU: ours, PyTorch's and that of sentence-transformers.

    pip install torch 'sentence-transformers>=6'
    python -m benchmarks.against_torch [--batch_size=512] [--filters=300]

"ours" starts from token ids and includes the layout of each batch, as in training; "ours, from
strings" also tokenizes the questions. PyTorch has the same model, the same loss and dense Adam. Its
batches are laid out before the clock starts: in the same length blocks, or padded to the longest
question. The convolution is a Conv1d or one product of the unfolded windows. The embedding is
updated by Adam (fused) or by SparseAdam, which skips the momentum of tokens that are not in the
batch. All four combinations are tried and the fastest is kept. sentence-transformers' own modules
and loss start from strings.

First the benchmark checks that ours and PyTorch take the same steps. Each measurement runs in a
process of its own; the variants alternate, and the table has the medians. The machine must be idle:
PyTorch's threads wait for one another in a busy loop and lose ten times as much time as ours where
another program occupies a core.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import pathlib
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.loss import torch_cross_entropy
from benchmarks.measuring import positive, program, run
from qpr_jax.data.sources import find_quora
from qpr_jax.errors import UserError

STEPS = 10  # of a measurement, after as many to warm up
CHECKED = 3  # steps whose losses are compared
OURS, STRINGS = "ours", "ours, from strings"
BLOCKS, PADDED, SENTENCES = "PyTorch, same blocks", "PyTorch, padded", "sentence-transformers"
FORMS = [
    " and ".join(form) for form in itertools.product(("Conv1d", "unfolded"), ("Adam", "SparseAdam"))
]


class Setup(NamedTuple):
    """The settings, the data, and the project's loader of batches."""

    config: Any
    dataset: Any
    feed: Any

    def rows(self, step: int) -> np.ndarray:
        """The questions of a batch, the queries first, then the candidates."""
        return self.feed.indices(step).questions

    def strings(self, step: int) -> list[str]:
        return [self.dataset.data.questions[row] for row in self.rows(step)]


def measure(
    what: str, folder: str, batch_size: int, filters: int, path: str = "", form: str = ""
) -> dict[str, Any]:
    """Run one measurement in this process; or "prepare" or "check", which come before them."""
    from qpr_jax.training.dataset import load_dataset
    from qpr_jax.training.loader import BatchLoader
    from qpr_jax.training.overrides import load_config

    config = load_config("quora_sdml")
    config.encoder.filters, config.batch_size = filters, batch_size
    file = pathlib.Path(folder) / "prepared.pickle"
    if what == "prepare":
        dataset = load_dataset(config, pathlib.Path(path))
        BatchLoader(config, dataset, devices=1)  # refuses a batch that is too large
        file.write_bytes(pickle.dumps(dataset))
        return {}
    dataset = pickle.loads(file.read_bytes())
    setup = Setup(config, dataset, BatchLoader(config, dataset, devices=1))
    if what == "check":
        return check(setup)
    if what in (OURS, STRINGS):
        step = our_steps(setup, from_strings=what == STRINGS)
    elif what == SENTENCES:
        step = sentence_steps(setup)
    else:
        lay_out = blocks_of if what == BLOCKS else padded
        laid_out = [lay_out(setup, i) for i in range(STEPS)]
        take = torch_steps(drawn_weights(setup), form)

        def step(i: int):
            return take(*laid_out[i])

    for _ in range(2):  # the first round compiles
        start = time.perf_counter()
        for i in range(STEPS):
            loss = step(i)
        loss = float(loss)  # waits for the last step
        seconds = time.perf_counter() - start
    return {"pairs_per_second": STEPS * batch_size / seconds, "loss": loss}


def our_steps(setup: Setup, *, from_strings: bool) -> Callable[[int], Any]:
    """Our train step: (number of the step) -> the loss before it."""
    import jax

    from qpr_jax.training.batches import lay_out
    from qpr_jax.training.distributed import make_mesh, replicated, split_over
    from qpr_jax.training.losses_config import loss_terms
    from qpr_jax.training.phases import init_model
    from qpr_jax.training.train_step import (
        init_state,
        make_loss,
        make_optimizer,
        make_train_step,
    )

    config, dataset, feed = setup
    vocabulary, width = dataset.tokenizer, dataset.token_ids.shape[1]
    mesh = make_mesh(config.batch_size, 1)
    encoder, params = init_model(config, setup.dataset)
    loss = make_loss(encoder, mesh, loss_terms(config))
    optimizer = make_optimizer(config.optimizer.learning_rate)
    train_step = make_train_step(loss, optimizer, seed=config.seed)
    state = jax.device_put(init_state(params, optimizer), replicated(mesh))
    strings = [setup.strings(i) for i in range(STEPS)]

    def from_words(i: int):
        words = vocabulary.token_ids(strings[i], config.text.max_tokens).ids
        words = np.pad(words, ((0, 0), (0, width - words.shape[1])))
        clusters = dataset.clusters[setup.rows(i)[config.batch_size :]].astype(np.int32)
        return lay_out(words[None], clusters[None], feed.shapes, vocabulary_size=vocabulary.size)

    batch_at = from_words if from_strings else feed.batch_at

    def step(i: int):
        nonlocal state
        state, metrics = train_step(state, split_over(batch_at(i), mesh))
        return metrics["loss"]

    return step


def blocks_of(setup: Setup, step: int):
    """A batch for PyTorch: blocks of token ids, and the row of each question in them."""
    import torch

    batch = setup.feed.batch_at(step)
    words = batch.unique_ids.astype(np.int64)
    return [torch.from_numpy(words[block]) for block in batch.blocks], torch.from_numpy(batch.order)


def padded(setup: Setup, step: int):
    """The same batch as one block, as wide as its longest question."""
    import torch

    words = setup.dataset.token_ids[setup.rows(step)].astype(np.int64)
    longest = max(1, int((words > 0).sum(axis=1).max()))
    return [torch.from_numpy(words[:, :longest].copy())], torch.arange(len(words))


def drawn_weights(setup: Setup) -> dict[str, Any]:
    encoder, size = setup.config.encoder, setup.dataset.tokenizer.size
    (window,), dim, filters = encoder.kernel_sizes, encoder.embedding_dim, encoder.filters
    rng = np.random.default_rng(0)

    def normal(scale: float, *shape: int) -> np.ndarray:
        return np.float32(scale) * rng.standard_normal(shape, np.float32)

    return {
        "embedding": normal(0.1, size, dim),
        "kernel": normal((window * dim) ** -0.5, filters, dim, window),
        "bias": np.zeros(filters, np.float32),
        "projection": normal(filters**-0.5, filters, encoder.output_dim),
    }


def torch_steps(weights: dict[str, np.ndarray], form: str) -> Callable[..., Any]:
    """PyTorch's train step: (blocks, order) -> the loss before it."""
    import torch
    from torch.nn.functional import embedding

    torch.set_num_threads(os.cpu_count())
    weights = {name: torch.tensor(value) for name, value in weights.items()}
    weights["embedding"][0] = 0  # padding
    for weight in weights.values():
        weight.requires_grad_()
    convolution, optimizer = form.split(" and ")
    sparse = optimizer == "SparseAdam"
    dense = [weight for name, weight in weights.items() if not sparse or name != "embedding"]
    optimizers = [torch.optim.Adam(dense, lr=1e-3, fused=True)]
    if sparse:
        optimizers.append(torch.optim.SparseAdam([weights["embedding"]], lr=1e-3))

    def step(blocks, order):
        for each in optimizers:
            each.zero_grad()
        # All blocks in one lookup: a gradient of the whole embedding for each would be slower.
        words = torch.cat([ids.ravel() for ids in blocks])
        embedded = embedding(words, weights["embedding"], padding_idx=0, sparse=sparse)
        parts = embedded.split([ids.numel() for ids in blocks])
        pooled = torch.cat(
            [
                torch_pooled(part.view(*ids.shape, -1), ids, weights["kernel"], convolution)
                for part, ids in zip(parts, blocks, strict=True)
            ]
        )
        vectors = (torch.tanh(pooled + weights["bias"]) @ weights["projection"])[order]
        loss = torch_cross_entropy(*vectors.chunk(2))
        loss.backward()
        for each in optimizers:
            each.step()
        return loss.detach()

    return step


def torch_pooled(embedded, ids, kernel, convolution: str):
    """The maximum over each question's own positions, [n, filters]."""
    import torch
    from torch.nn import functional

    filters, dim, window = kernel.shape
    left = window // 2
    beyond = ids == 0
    beyond[:, 0] = False
    if convolution == "Conv1d":
        scores = functional.conv1d(embedded.transpose(1, 2), kernel, padding=left)
        return scores.masked_fill(beyond[:, None], -torch.inf).max(dim=2).values
    around = functional.pad(embedded, (0, 0, left, window - 1 - left))
    unfolded = torch.cat([around[:, k : k + ids.shape[1]] for k in range(window)], dim=2)
    scores = unfolded @ kernel.permute(2, 1, 0).reshape(window * dim, filters)
    return scores.masked_fill(beyond[:, :, None], -torch.inf).max(dim=1).values


def sentence_steps(setup: Setup) -> Callable[[int], Any]:
    """The train step of sentence-transformers, from strings."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses, modules

    torch.set_num_threads(os.cpu_count())
    config, words = setup.config, ("", *setup.dataset.tokenizer.words)  # the first is padding
    encoder = config.encoder
    tokenizer = modules.tokenizer.WhitespaceTokenizer(words, stop_words=(), do_lower_case=True)
    embeddings = drawn_weights(setup)["embedding"][: len(words)]
    parts = [
        modules.WordEmbeddings(
            tokenizer, embeddings, update_embeddings=True, max_seq_length=config.text.max_tokens
        ),
        modules.CNN(encoder.embedding_dim, encoder.filters, list(encoder.kernel_sizes)),
        modules.Pooling(encoder.filters, pooling_mode="max"),
        modules.Dense(encoder.filters, encoder.output_dim, bias=False, activation_function=None),
    ]
    model = SentenceTransformer(modules=parts, device="cpu").train()
    loss_of = losses.MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.optimizer.learning_rate, fused=True)
    strings = [setup.strings(i) for i in range(STEPS)]

    def step(i: int):
        optimizer.zero_grad()
        sides = strings[i][: config.batch_size], strings[i][config.batch_size :]
        loss = loss_of([model.preprocess(side) for side in sides], None)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def check(setup: Setup) -> dict[str, Any]:
    """The losses of the first steps from the same weights: ours and PyTorch's, by layout."""
    from qpr_jax.training.phases import init_model

    _, params = init_model(setup.config, setup.dataset)
    weights = {
        "embedding": np.array(params["embedding"][...]),
        "kernel": np.array(params["kernels"][0][...]).transpose(2, 0, 1).copy(),
        "bias": np.array(params["biases"][0][...]),
        "projection": np.array(params["projection"][...]),
    }
    ours = our_steps(setup, from_strings=False)
    losses = {OURS: [float(ours(i)) for i in range(CHECKED)]}
    strings = our_steps(setup, from_strings=True)
    losses[STRINGS] = [float(strings(i)) for i in range(CHECKED)]
    for lay_out, form in ((blocks_of, FORMS[0]), (blocks_of, FORMS[2]), (padded, FORMS[0])):
        step = torch_steps(weights, form)
        name = f"PyTorch, {lay_out.__name__}, {form}"
        losses[name] = [float(step(*lay_out(setup, i))) for i in range(CHECKED)]
    return losses


def main() -> int:
    arguments = parse()
    names = [OURS, STRINGS, BLOCKS, PADDED, SENTENCES]
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "expected PyTorch, which is not installed",
            remedy="`pip install torch sentence-transformers`",
        )
    if importlib.util.find_spec("sentence_transformers") is None:
        print("sentence-transformers is not installed and is left out: `pip install` it\n")
        names.remove(SENTENCES)
    path = str(find_quora().absolute())
    with tempfile.TemporaryDirectory() as folder:
        given = {"batch_size": arguments.batch_size, "filters": arguments.filters, "folder": folder}

        def child(what: str, **more: str) -> dict[str, Any]:
            return run("benchmarks.against_torch", {"what": what, **given, **more})

        def rate(name: str, form: str, note: str) -> float:
            found = child(name, form=form)["pairs_per_second"]
            print(f"{note}, {name}: {found:,.0f} pairs/s", file=sys.stderr)
            return found

        child("prepare", path=path)
        losses = child("check")
        for name, values in losses.items():
            print(f"losses of the first steps: {', '.join(f'{v:.6f}' for v in values)}: {name}")
        if not all(
            np.allclose(values, losses[OURS], rtol=1e-4, atol=0) for values in losses.values()
        ):
            raise UserError("expected the same losses of ours and of PyTorch, within 1e-4")
        forms = dict.fromkeys(names, "")
        for name in (BLOCKS, PADDED):
            tried = {form: rate(name, form, form) for form in FORMS}
            forms[name] = max(tried, key=tried.get)
        rates = [
            {name: rate(name, form, f"round {number}") for name, form in forms.items()}
            for number in range(arguments.rounds)
        ]
    print(f"\n{os.cpu_count()} cores, {arguments.filters} filters, {arguments.batch_size} pairs\n")
    print("| | pairs/s | ours is faster by |\n|---|---|---|")
    medians = {name: statistics.median(each[name] for each in rates) for name in names}
    for name, median in medians.items():
        base = medians[STRINGS if name == SENTENCES else OURS]
        form = f" ({forms[name]})" if forms[name] else ""
        print(f"| {name}{form} | {median:,.0f} | {base / median:.2f} |")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=positive, default=512)
    parser.add_argument("--filters", type=positive, default=300)
    parser.add_argument("--rounds", type=positive, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(program(main, measure))
