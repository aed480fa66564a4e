"""Neural networks in Flax NNX; the sizes of a BERT load no JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

EMBEDDING_SCALE = 0.1  # standard deviation of a new embedding


def embedding_norm(width: int) -> float:
    """Return the norm of a new embedding; training hardly changes that of a word."""
    return EMBEDDING_SCALE * math.sqrt(width)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale the rows of a NumPy array [n, d] to length 1, like `arrays.unit_vectors`."""
    _, exponents = np.frexp(np.abs(rows).max(axis=1, keepdims=True))
    scaled = np.ldexp(rows, -exponents)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(lengths == 0, 1, lengths).astype(rows.dtype)


@dataclass(frozen=True)
class BertShape:
    """Sizes of a BERT or MPNet, by the names of its `config.json`, and how vectors are pooled."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    relative_attention_num_buckets: int = 0  # of an MPNet: distances with a number each, or 0
    pooling: str = "mean"  # over the tokens of the last layer; or "cls", "max"
    normalize: bool = True  # scale the vectors to length 1
