"""Questions encoded a second, from text to vectors, on all cores.

    python -m benchmarks.encode [--quick] [--encoder runs/mine minilm]

The packaged encoder, and encoders with random weights of the sizes of two presets, because the rate
does not depend on the weights. Questions are generated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import report
from qpr_jax.cli.program import run_program
from qpr_jax.data.generated_questions import synthetic_pairs
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import STUDENT
from qpr_jax.locations import read_encoder
from qpr_jax.text.vocabulary import Vocabulary, frequent_words
from qpr_jax.training.config import load_config

PRESETS = ("quora_sdml", "quora_distilled")


def random_encoder(preset: str, vocabulary: Vocabulary) -> CnnEncoder:
    """Return an encoder of the sizes of a preset, with random weights."""
    sizes, rng = load_config(preset).encoder, np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    embedding = draw(vocabulary.size, sizes.embedding_dim)
    embedding[0] = 0
    features = len(sizes.kernel_sizes) * sizes.filters + sizes.bag_of_words * sizes.embedding_dim
    return CnnEncoder(
        embedding=embedding,
        kernels=tuple(draw(w, sizes.embedding_dim, sizes.filters) for w in sizes.kernel_sizes),
        biases=tuple(draw(sizes.filters) for _ in sizes.kernel_sizes),
        projection=draw(features, sizes.output_dim),
        vocabulary=vocabulary,
        max_tokens=64,
        settings={},
        normalize=sizes.normalize,
    )


def encode_all(encoder: Encoder, questions: Sequence[str], size: int) -> Callable[[], None]:
    """Return a call that encodes questions, `size` at a time."""

    def call() -> None:
        for at in range(0, len(questions), size):
            encoder.encode(questions[at : at + size])

    return call


def rates(encoders: dict[str, Encoder], questions: list[str], rounds: int) -> report.Table:
    """Return the rates of encoders, measured in turns."""
    sizes = {1: questions[:500], 1000: questions[:5000], len(questions): questions}
    cells: dict[str, list[str]] = {name: [name] for name in encoders}
    for encoder in encoders.values():
        encoder.encode(questions)  # computes the products of their tokens
    for size, some in sizes.items():
        calls = {name: encode_all(encoder, some, size) for name, encoder in encoders.items()}
        for name, seconds in report.median_seconds(calls, rounds).items():
            cells[name].append(f"{len(some) / seconds:,.0f}")
    head = ["encoder", *(f"{size:,} at a time" for size in sizes)]
    title = f"Questions a second, median of {rounds} rounds"
    return report.Table(title, head, list(cells.values()))


def main() -> int:
    """Measure."""
    parser = report.parser(__doc__)
    parser.add_argument("--encoder", nargs="+", default=[], help="also measure these encoders")
    options = parser.parse_args()
    count, rounds = (5_000, 3) if options.quick else (100_000, 5)
    texts = synthetic_pairs().questions
    questions = [texts[i % len(texts)] for i in range(count)]
    encoders: dict[str, Encoder] = {STUDENT: read_encoder(STUDENT)}
    for preset in PRESETS:
        subwords = load_config(preset).text.subwords
        words = frequent_words(texts[: len(texts) // 2])[:50_000]
        vocabulary = Vocabulary(tuple(words), bins=5_000, subwords=subwords)
        encoders[f"{preset}, random weights"] = random_encoder(preset, vocabulary)
    encoders |= {name: read_encoder(name) for name in options.encoder}
    report.finish("encode", options, [rates(encoders, questions, rounds)])
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
