"""The convolutional encoder without JAX, and its folder: weights, vocabulary and settings.

Weights that half precision holds exactly are stored so, and an embedding table whose rows are
products of integers of 8 bits and a number is stored as these. In memory all are float32, and the
fingerprint is of these.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.encoders.cnn_kernels import FoldedCnn
from qpr_jax.encoders.encoder import (
    EncoderSummary,
    parse_tensors,
    read_facts,
    say_cut,
    serialize_tensors,
)
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, read_manifest, read_verified
from qpr_jax.running import cpu_count
from qpr_jax.text.cleaning import as_texts
from qpr_jax.text.vocabulary import Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

FORMAT = "qpr_jax model 1"
WEIGHTS, VOCABULARY, SETTINGS = "model.safetensors", "vocabulary.json", "settings.json"
# Questions encoded at a time by a thread: their features fit into the cache of a core.
_CHUNK = 512
_FACTS = {"max_words": int, "normalize": bool, "settings": dict}
_SCALES = "embedding_scales"  # of the rows of a table in 8 bits, in the file of weights


@dataclass(frozen=True, eq=False)
class CnnEncoder:
    """An `encoders.encoder.Encoder` that computes what `models.cnn.ConvEncoder` does, in NumPy.

    Attributes:
      embedding: float32 [V, e], zeros in row 0 (padding).
      kernels, biases: float32 [w, e, f] and [f] each.
      projection: float32 [sum of f, d], or [sum of f + e, d] with a bag of words.
      settings: of its training, flat.
    """

    embedding: np.ndarray
    kernels: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    projection: np.ndarray
    vocabulary: Vocabulary
    max_tokens: int
    settings: dict[str, Any]
    normalize: bool = False

    def __repr__(self) -> str:
        widths = ", ".join(str(len(kernel)) for kernel in self.kernels)
        return (
            f"<CnnEncoder: {self.dimension} dimensions, {len(self.vocabulary.words):,} words, "
            f"windows of {widths}, reads {self.max_tokens} tokens>"
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of weights, vocabulary, `max_tokens` and `normalize`."""
        vocabulary = self.vocabulary
        facts = ["qpr_jax encoder 1", self.max_tokens, self.normalize]
        facts += [vocabulary.bins, 0, vocabulary.words]
        if vocabulary.subwords:
            facts += ["familiar", [], "signs", "misspelled"]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, array in sorted(self._weights().items()):
            digest.update(json.dumps([name, array.shape]).encode())
            digest.update(np.ascontiguousarray(array, "<f4").data)
        return digest.hexdigest()

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.projection.shape[1])

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, d], in the order of the questions."""
        texts = as_texts(questions)
        vectors = np.empty((len(texts), self.dimension), np.float32)

        def encode(start: int) -> int:
            chunk = slice(start, start + _CHUNK)
            tokens = self.vocabulary.token_ids(texts[chunk], self.max_tokens)
            vectors[chunk] = self._folded.encode(tokens)
            return tokens.truncated

        if len(texts) <= _CHUNK:
            cut = encode(0)
        else:
            with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
                cut = sum(pool.map(encode, range(0, len(texts), _CHUNK)))
        if cut:
            say_cut(self, cut, len(texts))
        return vectors

    def files(self) -> dict[str, bytes]:
        """The contents of its folder: model.safetensors, vocabulary.json and settings.json."""
        weights, codes = self._weights(), dict[str, np.ndarray]()
        integers, scales = _to_int8(weights["embedding"])
        if np.array_equal(integers * scales, weights["embedding"]):
            del weights["embedding"]
            codes = {"embedding": integers, _SCALES: scales}
        with np.errstate(over="ignore"):
            halves = {name: array.astype(np.float16) for name, array in weights.items()}
        if all(np.array_equal(halves[name], array) for name, array in weights.items()):
            weights = halves
        settings: dict[str, Any] = {"max_words": self.max_tokens, "normalize": self.normalize}
        text = json.dumps(settings | {"settings": self.settings}, indent=2, allow_nan=False)
        return {
            WEIGHTS: serialize_tensors(weights | codes),
            VOCABULARY: vocabulary_to_bytes(self.vocabulary),
            SETTINGS: text.encode() + b"\n",
        }

    def manifest(self) -> dict[str, Any]:
        """The format of its folder."""
        return {"format": FORMAT}

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        words = self.vocabulary.words
        runs = (
            "are sums of a word that they may misspell and runs of 3 to 5 characters, which "
            * self.vocabulary.subwords
        )
        rest = f"others {runs}share {self.vocabulary.bins:,} embeddings"
        windows = ", ".join(str(len(kernel)) for kernel in self.kernels)
        filters, longest = sum(map(len, self.biases)), max(map(len, self.kernels))
        return EncoderSummary(
            library="qpr_jax",
            description=f"A convolutional encoder (windows of {windows} words, {filters:,} "
            f"filters, embeddings of {self.embedding.shape[1]}) that needs no accelerator.",
            vocabulary_size=self.vocabulary.size,
            words=words,
            limits=(
                f"It knows {len(words):,} words; {rest}. So rare names and numbers are easily "
                "confused, and of a language that it was not trained with it sees the spelling.",
                f"It sees the order of words within {longest} of them, and reads at most "
                f"{self.max_tokens:,} of a question.",
            ),
        )

    def known_words(self, words: Collection[str]) -> set[str]:
        """Which of some words, in lower case, are in the vocabulary."""
        return {word for word in words if self.vocabulary.knows(word)}

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """The words of the vocabulary, and their embeddings, float32 [n, e]."""
        return self.vocabulary.words, self.embedding[1 : self.vocabulary.first_bin]

    def _weights(self) -> dict[str, np.ndarray]:
        """The float32 arrays by their names in the folder."""
        weights = {"embedding": self.embedding, "projection": self.projection}
        for i, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            weights |= {f"kernel_{i}": kernel, f"bias_{i}": bias}
        return {name: np.asarray(array, np.float32) for name, array in weights.items()}

    @functools.cached_property
    def _folded(self) -> FoldedCnn:
        arrays = self.embedding, self.kernels, self.biases, self.projection
        return FoldedCnn(*arrays, normalize=self.normalize)


def read_cnn(folder: StrPath) -> CnnEncoder:
    """Read an encoder from its folder; UserError where it is incomplete or damaged."""
    manifest = read_manifest(folder, format=FORMAT)
    stored = parse_tensors(read_verified(folder, WEIGHTS, manifest), f"{folder}: {WEIGHTS}")
    weights = {name: array.astype(np.float32) for name, array in stored.items()}
    scales = weights.pop(_SCALES, np.ones((1, 1), np.float32))
    vocabulary = vocabulary_from_bytes(read_verified(folder, VOCABULARY, manifest))
    facts = read_facts(folder, SETTINGS, manifest, _FACTS)
    count = sum(name.startswith("kernel_") for name in weights)
    try:
        encoder = CnnEncoder(
            embedding=weights["embedding"] * scales,
            kernels=tuple(weights[f"kernel_{i}"] for i in range(count)),
            biases=tuple(weights[f"bias_{i}"] for i in range(count)),
            projection=weights["projection"],
            vocabulary=vocabulary,
            max_tokens=facts["max_words"],
            settings=facts["settings"],
            normalize=facts["normalize"],
        )
    except (KeyError, ValueError) as error:
        what = f"{folder}: expected the weights of an encoder, got {error!r}"
        raise UserError(what, remedy="export or fetch it again") from None
    _check_shapes(encoder, folder)
    return encoder


def round_to_half(array: np.ndarray) -> np.ndarray:
    """The nearest numbers of half precision, as float32; UserError for one beyond its range."""
    with np.errstate(over="ignore"):
        rounded: np.ndarray = array.astype(np.float16).astype(np.float32)
    if not np.isfinite(rounded).all():
        what, setting = "expected weights of half precision, up to 65,504", "encoder.stored_dtype"
        remedy = f"set `{setting}=float32`"
        raise UserError(f"{what}, got larger ones", setting=setting, remedy=remedy)
    return rounded


def round_to_int8(table: np.ndarray) -> np.ndarray:
    """The nearest rows of a table [n, e] that 8 bits and a scale of each row hold, as float32."""
    integers, scales = _to_int8(table)
    rounded: np.ndarray = integers * scales
    return rounded


def _to_int8(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers, int8 [n, e], and scales, float32 [n, 1], whose products are near a table.

    The largest integer of a row is 127. A scale has 11 bits, so products are exact, and the scales
    of products are the scales they were made with.
    """
    fractions, exponents = np.frexp(np.abs(table).max(axis=1, keepdims=True) / np.float32(127))
    scales = np.ldexp(np.rint(fractions * 2048) / 2048, exponents).astype(np.float32)
    integers = np.rint(table / np.where(scales == 0, 1, scales)).astype(np.int8)
    return integers, scales


def _check_shapes(encoder: CnnEncoder, folder: StrPath) -> None:
    """UserError unless the arrays fit each other: compiled loops check no bounds."""
    embedding, projection = encoder.embedding, encoder.projection
    filters = [kernel.shape[-1] for kernel in encoder.kernels]
    width = embedding.shape[-1]
    fits = (
        encoder.vocabulary.bins > 0
        and encoder.max_tokens > 0
        and embedding.shape == (encoder.vocabulary.size, width)
        and not embedding[0].any()  # padding
        and all(k.ndim == 3 and k.size and k.shape[1] == width for k in encoder.kernels)
        and [bias.shape for bias in encoder.biases] == [(n,) for n in filters]
        and projection.ndim == 2
        and len(projection) in (sum(filters), sum(filters) + width)
        and projection.size > 0
    )
    if not fits:
        size = encoder.vocabulary.size
        what = f"{folder}: the weights do not fit each other and a vocabulary of {size} ids"
        raise UserError(what, remedy="export or fetch it again")
