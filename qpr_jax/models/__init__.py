"""Neural networks in Flax NNX; the sizes of a BERT load no JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass

EMBEDDING_SCALE = 0.1  # standard deviation of a new embedding


def embedding_norm(width: int) -> float:
    """The norm of a new embedding; training hardly changes that of a word."""
    return EMBEDDING_SCALE * math.sqrt(width)


@dataclass(frozen=True)
class BertShape:
    """Sizes of a BERT under the names of its `config.json`, and the pooling of its vectors.

    Attributes:
      pooling: of the last layer's vectors over the question's tokens: mean, cls or max.
      normalize: scale the vectors to length 1.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pooling: str = "mean"
    normalize: bool = True
