"""An encoder of your own under a retriever: hashed words and trigrams, projected at random.

    pip install . -c constraints.txt
    python examples/custom_encoder.py

`fingerprint`, `dimension` and `encode` are enough to index and search in memory. `files`,
`manifest` and a registered reader let the index be saved and loaded, in programs that import this
module.
"""

import hashlib
import re
import tempfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax import Encoder, Retriever, register_encoder

FORMAT = "hashed trigrams 1"  # another one when the vectors or `files` change


class HashingEncoder(Encoder):
    """Questions with common words and trigrams are near; no training, and any language."""

    dimension = 256

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._table = np.random.default_rng(seed).standard_normal((16_384, 256), np.float32)

    @property
    def fingerprint(self) -> str:
        """Names what `encode` computes: vectors of another fingerprint are refused."""
        return hashlib.sha256(f"{FORMAT} {self.seed}".encode()).hexdigest()

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [n, dimension]."""
        vectors = np.zeros((len(questions), self.dimension), np.float32)
        for vector, question in zip(vectors, questions, strict=True):
            for word in re.findall(r"\w+", question.lower()):
                for term in [word, *(f" {word} "[i : i + 3] for i in range(len(word)))]:
                    vector += self._table[zlib.crc32(term.encode()) % len(self._table)]
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)

    def files(self) -> dict[str, bytes]:
        return {"seed.txt": str(self.seed).encode()}

    def manifest(self) -> dict[str, Any]:
        return {"format": FORMAT}


register_encoder(FORMAT, lambda files: HashingEncoder(int(files["seed.txt"])))

if __name__ == "__main__":
    retriever = Retriever.build(
        ["How do I reset my password?", "Any news?"], encoder=HashingEncoder()
    )
    with tempfile.TemporaryDirectory() as folder:
        retriever.save(folder)
        print(Retriever.load(folder).search(["password reset"], k=1))
