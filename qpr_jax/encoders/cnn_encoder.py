"""The convolutional encoder without JAX."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.encoders import cnn_format, cnn_kernels
from qpr_jax.encoders.base import EncoderSummary
from qpr_jax.encoders.folded_tables import FoldedTables
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.machine import cpu_count
from qpr_jax.text.base import NO_PARTS, Parts, as_texts
from qpr_jax.text.vocabulary import Vocabulary

# Questions encoded at a time by a thread: their features fit into the cache of a core.
_CHUNK = 512


@dataclass(frozen=True, eq=False)
class CnnEncoder:
    """An `encoders.base.Encoder` that computes what `models.cnn.ConvEncoder` does, in NumPy.

    Attributes:
      embedding: float32 [V, e], zeros in row 0 (padding).
      kernels: float32 [w, e, f] each.
      biases: float32 [f] each.
      projection: float32 [sum of f, d], or [sum of f + e, d] with a bag of words.
      vocabulary: its tokenizer.
      max_tokens: tokens of a question that are read.
      settings: of its training, flat.
      normalize: scale vectors to length 1.
      extends: identities of the encoders that this one only adds words to, newest first. A text
        without such a word has the same vector, to the last bit, from all of them.
    """

    embedding: np.ndarray
    kernels: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    projection: np.ndarray
    vocabulary: Vocabulary
    max_tokens: int
    settings: dict[str, Any]
    normalize: bool = False
    extends: tuple[str, ...] = ()

    def __repr__(self) -> str:
        widths = ", ".join(str(len(kernel)) for kernel in self.kernels)
        return (
            f"<CnnEncoder: {self.dimension} dimensions, {len(self.vocabulary.all_words):,} words, "
            f"windows of {widths}, reads {self.max_tokens} tokens>"
        )

    @functools.cached_property
    def identity(self) -> str:
        """Hash of weights, vocabulary, `max_tokens` and `normalize`."""
        return cnn_format.identity_of(self._parts())

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.projection.shape[1])

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, d], in the order of the questions."""
        texts = as_texts(questions)

        def encode(start: int) -> np.ndarray:
            chunk = texts[start : start + _CHUNK]
            token_ids, offsets, _, parts = self.vocabulary.flat_ids(chunk, self.max_tokens)
            return self._encode(token_ids, offsets, parts)

        return self._encode_chunks(encode, len(texts))

    def encode_ids(self, token_ids: np.ndarray, parts: Parts = NO_PARTS) -> np.ndarray:
        """Encode token ids, int32 [n, L], zero-padded on the right: float32 [n, d].

        `parts` are of the ids from V.
        A vector depends neither on the width L nor on the other rows. A row of padding is the
        empty question, tanh(bias) @ projection.
        """
        _check_ids(token_ids, len(self.embedding) + parts.tokens)

        def encode(start: int) -> np.ndarray:
            chunk = token_ids[start : start + _CHUNK]
            lengths = np.count_nonzero(chunk, axis=1)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            return self._encode(chunk[chunk != 0], offsets, parts)

        return self._encode_chunks(encode, len(token_ids))

    def warm_up(self) -> None:
        """Compute the products of all tokens, which the first questions would wait for."""
        self._tables.compute(np.arange(len(self.embedding)))

    def files(self) -> dict[str, bytes]:
        """The contents of its folder: model.safetensors, vocabulary.json and settings.json."""
        return cnn_format.to_files(self._parts())

    def manifest(self) -> dict[str, Any]:
        """The format of its folder."""
        return {"format": cnn_format.FORMAT}

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        sizes = [len(kernel) for kernel in self.kernels]
        return EncoderSummary(
            library="qpr_jax",
            description=f"A convolutional encoder (windows of {', '.join(map(str, sizes))} words, "
            f"{len(self._bias):,} filters, embeddings of {self.embedding.shape[1]}) that needs no "
            "accelerator.",
            vocabulary_size=self.vocabulary.size,
            words=self.vocabulary.all_words,
            limits=(
                _known_words(self.vocabulary),
                f"It sees the order of words within {max(sizes)} of them, and reads at most "
                f"{self.max_tokens:,} of a question.",
            ),
        )

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """The words of the vocabulary, and their embeddings, float32 [n, e]."""
        first_bin, bins = self.vocabulary.first_bin, self.vocabulary.bins
        rows = [self.embedding[1:first_bin], self.embedding[first_bin + bins :]]
        return self.vocabulary.all_words, np.concatenate(rows)

    def with_words(
        self, vocabulary: Vocabulary, rows: np.ndarray, settings: dict[str, Any]
    ) -> CnnEncoder:
        """Add words; all else is the same object, so that other texts keep their vectors.

        Args:
          vocabulary: this one's, from `Vocabulary.with_words`.
          rows: float32 [A, e], the embeddings of the A words that it has more.
          settings: of the training of these.
        """
        extends = (self.identity, *self.extends)
        return dataclasses.replace(
            self,
            embedding=np.concatenate([self.embedding, rows]),
            vocabulary=vocabulary,
            settings=settings,
            extends=extends,
        )

    def _parts(self) -> cnn_format.CnnParts:
        """What its folder holds: float32, with zeros for padding, as it is encoded."""
        embedding = self.embedding
        if embedding[0].any():
            embedding = embedding.copy()
            embedding[0] = 0
        weights = {"embedding": embedding, "projection": self.projection}
        for i, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            weights |= {f"kernel_{i}": kernel, f"bias_{i}": bias}
        weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        return cnn_format.CnnParts(
            *(weights, self.vocabulary, self.max_tokens, self.normalize, self.settings),
            self.extends,
        )

    def _encode(self, token_ids: np.ndarray, offsets: np.ndarray, parts: Parts) -> np.ndarray:
        inputs = (self.embedding, self._bias, self._projection, token_ids, offsets)
        return cnn_kernels.encode(
            self._tables,
            *inputs,
            bag_of_words=len(self.projection) > len(self._bias),
            normalize=self.normalize,
            parts=parts,
        )

    def _encode_chunks(self, encode: Callable[[int], np.ndarray], count: int) -> np.ndarray:
        """Call `encode(start)` for each chunk of `count` questions, on all cores."""
        if count <= _CHUNK:
            return encode(0)
        vectors = np.empty((count, self.dimension), np.float32)

        def fill(start: int) -> None:
            vectors[start : start + _CHUNK] = encode(start)

        with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
            for _ in pool.map(fill, range(0, count, _CHUNK)):
                pass
        return vectors

    @functools.cached_property
    def _tables(self) -> FoldedTables:
        return FoldedTables(self.embedding, self.kernels)

    @functools.cached_property
    def _bias(self) -> np.ndarray:
        return np.concatenate(self.biases)

    @functools.cached_property
    def _projection(self) -> np.ndarray:
        return cnn_kernels.pad_projection(self.projection)


def read_cnn(folder: StrPath) -> CnnEncoder:
    """Read an encoder from its folder; UserError where it is incomplete or damaged."""
    parts = cnn_format.read_parts(folder)
    weights = parts.weights
    count = (len(weights) - 2) // 2
    return CnnEncoder(
        embedding=weights["embedding"],
        kernels=tuple(weights[f"kernel_{i}"] for i in range(count)),
        biases=tuple(weights[f"bias_{i}"] for i in range(count)),
        projection=weights["projection"],
        vocabulary=parts.vocabulary,
        max_tokens=parts.max_tokens,
        settings=parts.settings,
        normalize=parts.normalize,
        extends=parts.extends,
    )


def _check_ids(token_ids: np.ndarray, rows: int) -> None:
    shape, dtype = token_ids.shape, token_ids.dtype
    if len(shape) != 2 or shape[1] < 1 or not np.issubdtype(dtype, np.integer):
        raise UserError(
            f"`token_ids`: expected integers [n, L], got {dtype} {list(shape)}",
            remedy="see `Vocabulary.token_ids`",
        )
    if token_ids.size and (token_ids.min() < 0 or token_ids.max() >= rows):
        raise UserError(
            f"`token_ids`: expected ids from 0 to {rows - 1}, got {token_ids.min()} to "
            f"{token_ids.max()}",
            remedy="use this encoder's vocabulary",
        )


def _known_words(vocabulary: Vocabulary) -> str:
    """What an encoder knows of words, in a sentence."""
    words, bins = len(vocabulary.all_words), vocabulary.bins
    if vocabulary.subwords:
        return (
            f"It knows {words:,} words; any other is the sum of its runs of 3 to 5 characters, "
            f"which share {bins:,} embeddings. So rare names and numbers are easily confused, and "
            "of a language that it was not trained with it sees the spelling alone."
        )
    return (
        f"It knows {words:,} words; others share {bins:,} embeddings, so that rare names and "
        "numbers are easily confused."
    )
