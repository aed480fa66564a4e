"""A BERT-family encoder that loads JAX with its first question."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qpr_jax.encoders.encoder import EncoderSummary, say_cut, serialize_tensors
from qpr_jax.encoders.sentence_transformers import (
    LENGTHS,
    TOKENIZER,
    WEIGHTS,
    named_tensors,
    optional_files,
    parse_model,
    read_files,
)
from qpr_jax.errors import needs
from qpr_jax.files import StrPath
from qpr_jax.models import BertShape
from qpr_jax.text.cleaning import as_texts
from qpr_jax.text.tokenizer import WordPieces

if TYPE_CHECKING:
    from qpr_jax.encoders.transformer_runtime import Runtime

FORMAT = "qpr_jax sentence model 1"


@dataclass(frozen=True, eq=False)
class TransformerEncoder:
    """An `encoders.encoder.Encoder` in the format of sentence-transformers.

    Attributes:
      shape, max_tokens, weights: as of `parse_model`.
      contents: all files of the folder that define the encoder, by name.
      settings: of its training, flat.
    """

    shape: BertShape
    max_tokens: int
    weights: dict[str, Any]
    contents: dict[str, bytes]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        layers = self.shape.num_hidden_layers
        sizes = f"{self.dimension} dimensions, {layers} layers, reads {self.max_tokens} tokens"
        return f"<TransformerEncoder: {sizes}>"

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the files."""
        files = sorted(self.contents.items())
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files}
        return hashlib.sha256(json.dumps([FORMAT, hashes]).encode()).hexdigest()

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.shape.hidden_size

    @property
    def normalize(self) -> bool:
        """Whether vectors have length 1."""
        return self.shape.normalize

    @property
    def precision(self) -> str:
        """Of float32 products: that of its training, unless bfloat16 products were trained."""
        trained_in_float32 = self.settings.get("encoder.compute_dtype", "float32") == "float32"
        name = self.settings.get("precision", "highest")
        return name if trained_in_float32 and name in ("high", "default") else "highest"

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, d], in the order of the questions."""
        ids, cut = self.tokenizer.id_lists(as_texts(questions), self.max_tokens)
        if cut:
            say_cut(self, cut, len(ids))
        vectors = np.empty((len(ids), self.dimension), np.float32)
        self._runtime.fill(vectors, ids, self.max_tokens)
        return vectors

    def files(self) -> dict[str, bytes]:
        """Return the contents of its folder, in the format of sentence-transformers."""
        return self.contents

    def manifest(self) -> dict[str, Any]:
        """The format of its folder, and the settings of its training, which no file holds."""
        return {"format": FORMAT, "settings": self.settings}

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        return EncoderSummary(
            library="sentence-transformers",
            description="A transformer of the BERT family, in the format of sentence-transformers.",
            vocabulary_size=self.shape.vocab_size,
            limits=(f"It reads at most {self.max_tokens:,} word pieces of a question.",),
        )

    def known_words(self, words: Collection[str]) -> set[str] | None:
        """Return which of some words, in lower case, are no two pieces.

        None if it was trained on more.
        """
        return None if self.settings else self.tokenizer.known_words(words)

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """The word pieces that are whole words, and their token embeddings, float32 [n, e]."""
        words = self.tokenizer.whole_words()
        rows = np.asarray(self.weights["embedding"], np.float32)
        return list(words), rows[list(words.values())]

    def trained(
        self, weights: dict[str, Any], settings: dict[str, Any], *, max_tokens: int
    ) -> TransformerEncoder:
        """Return the same model after a training, with its flat settings.

        weights: parameters of `BertEncoder` as pure nested dictionaries.
        max_tokens: that the training read. A limit below the model's becomes that of the encoder.
        """
        contents = self.contents | {WEIGHTS: serialize_tensors(named_tensors(weights))}
        if max_tokens < self.max_tokens:
            name, key = LENGTHS[0]
            config = json.loads(contents.get(name, b"{}")) | {key: max_tokens}
            contents[name] = json.dumps(config, indent=2).encode() + b"\n"
        limit = min(max_tokens, self.max_tokens)
        return TransformerEncoder(self.shape, limit, weights, contents, settings)

    @functools.cached_property
    def tokenizer(self) -> WordPieces:
        """From questions to token ids."""
        return WordPieces(self.contents[TOKENIZER], self.shape.vocab_size)

    @functools.cached_property
    def _runtime(self) -> Runtime:
        with needs("a transformer", ".[train]"):
            from qpr_jax.encoders.transformer_runtime import Runtime

        return Runtime(self.shape, self.weights, self.precision)


def read_transformer(folder: StrPath) -> TransformerEncoder:
    """Read a folder of sentence-transformers, verified if `save_encoder` wrote it."""
    contents, settings = read_files(folder, FORMAT, optional_files(folder))
    return TransformerEncoder(*parse_model(contents, folder), contents, settings)
