"""What an encoder offers to index, server, model card and training, and the parser of weights."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qpr_jax import progress
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, parse_json, read_verified

log = logging.getLogger("qpr_jax")
CARD = "README.md"  # the model card in the folder of a published encoder
_PART = 4_096  # questions that are encoded between two looks at the clock
_said_cut: weakref.WeakSet[Encoder] = weakref.WeakSet()  # those of which a warning was logged


@dataclass(frozen=True)
class EncoderSummary:
    """The facts of an encoder that `qpr info`, the model card and the error analysis print.

    Attributes:
      library: the library that loads `Encoder.files`, as the Hugging Face hub spells it.
      description: the architecture, in a sentence.
      vocabulary_size: rows of the embedding table.
      words: the words with an embedding of their own; None for a tokenizer of word pieces.
      limits: what the encoder cannot distinguish, a sentence each.
    """

    library: str
    description: str
    vocabulary_size: int
    words: tuple[str, ...] | None = field(default=None, repr=False)  # many
    limits: tuple[str, ...] = ()


class Encoder(Protocol):
    """From questions to vectors; safe to use from several threads.

    An encoder of one's own is a subclass with `fingerprint`, `dimension` and `encode`; what else
    has a body below may stay. `Retriever.build(questions, encoder=encoder)` indexes with it.
    `files` and `manifest` let a retriever with it be saved, and `register_encoder` lets it be
    loaded; `examples/custom_encoder.py` has all of them.
    """

    @property
    def fingerprint(self) -> str:
        """Hash of what the encoder computes with, whatever files hold it."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a question that are read, the same in training, index and serving; 0: all."""
        return 0

    @property
    def normalize(self) -> bool:
        """Whether vectors have length 1."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of its training, flat; empty if it was trained elsewhere."""
        return {}

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, dimension], in the order of the questions."""

    def files(self) -> dict[str, bytes]:
        """Return the contents of its folder by name, without the manifest and the model card."""
        raise _lacks(self, "files")

    def manifest(self) -> dict[str, Any]:
        """Return the facts of its folder's manifest: the `format`, and what no file holds."""
        raise _lacks(self, "a manifest")

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        return EncoderSummary("", type(self).__name__, 0)

    def known_words(self, words: Collection[str]) -> set[str] | None:
        """Return which of some words, in lower case, it learned as a whole.

        None where it cannot tell.
        """
        return None

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """Return the words with an embedding of their own, and these, float32 [n, e]."""
        raise _lacks(self, "embeddings of words")


def _lacks(encoder: Encoder, what: str) -> UserError:
    return UserError(
        f"expected an encoder with {what}, got {type(encoder).__name__} without",
        remedy="define the method of `qpr_jax.Encoder`, as `examples/custom_encoder.py` does",
    )


def say_cut(encoder: Encoder, cut: int, count: int) -> None:
    """Warn of texts that are longer than an encoder reads, once for each encoder."""
    if encoder not in _said_cut:
        _said_cut.add(encoder)
        message = "texts of more than %d tokens, of which the rest is not read: %s of %s"
        log.warning(message, encoder.max_tokens, f"{cut:,}", f"{count:,}")


def encode_in_parts(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Encode many questions with a bar: float32 [n, dimension]."""
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    with progress.bar("encoded", len(texts)) as show:
        for start in range(0, len(texts), _PART):
            some = texts[start : start + _PART]
            vectors[start : start + len(some)] = encoder.encode(some)
            show(start + len(some), "")
    return vectors


def parse_tensors(data: bytes, where: str) -> dict[str, np.ndarray]:
    """Parse a file of safetensors; UserError, with `where` it is, for anything else."""
    try:
        return dict(load(data))
    except (SafetensorError, KeyError) as error:  # a KeyError names a type such as BF16
        what = f"{where}: expected safetensors of a type that NumPy has, got {error}"
        raise UserError(what, remedy="fetch or export it again, in float32") from None


def read_facts(
    folder: StrPath, name: str, manifest: dict[str, Any], facts: Mapping[str, type]
) -> dict[str, Any]:
    """Read a verified JSON object; UserError unless entries have these types, numbers above 0.

    Args:
      folder: that of `manifest`.
      name: of the file.
      facts: the type of each entry.
    """
    found = parse_json(read_verified(folder, name, manifest), f"{folder}: {name}")
    values = found if isinstance(found, dict) else {}
    for fact, kind in facts.items():
        value = values.get(fact)
        if type(value) is not kind or (kind is int and value not in range(1, 2**31)):
            what = f"{folder}: {name}: expected `{fact}`, of type {kind.__name__}"
            raise UserError(what, remedy="export or fetch it again")
    return values


def serialize_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return the contents of a safetensors file."""
    return bytes(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))
