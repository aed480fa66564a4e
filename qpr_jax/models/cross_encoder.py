"""A BERT that reads two questions together and gives one number."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from qpr_jax.models.bert import BertEncoder
from qpr_jax.models.bert_shape import BertShape
from qpr_jax.models.products import product


class PairScorer(BertEncoder):
    """`[CLS] a [SEP] b [SEP]` to a logit: BERT, a pooler over the first token, a linear output.

    The tokens of `b` and the second `[SEP]` are of segment 1. The parameters are those of
    `BertForSequenceClassification` with one label; the dropout of its training is left out.

    Source: Devlin et al. (2019), section 4.1; Nogueira and Cho (2019), "Passage Re-ranking with
    BERT".
    """

    def __init__(
        self,
        shape: BertShape,
        *,
        compute_dtype: str = "float32",
        precision: str | lax.PrecisionLike = "highest",
        rngs: nnx.Rngs,
    ) -> None:
        """Draw the weights; arguments as of `BertEncoder`, whose pooling is not used."""
        super().__init__(shape, compute_dtype=compute_dtype, precision=precision, rngs=rngs)
        self.pooler = nnx.Linear(shape.hidden_size, shape.hidden_size, rngs=rngs)
        self.classifier = nnx.Linear(shape.hidden_size, 1, rngs=rngs)

    def score(self, token_ids: jax.Array, segments: jax.Array) -> jax.Array:
        """Score pairs: float32 [n], logits.

        Args:
          token_ids: int32 [n, L], padded with -1 on the right.
          segments: int32 [n, L], 0 or 1.
        """
        mask = token_ids >= 0
        x = self.embed(self.embedding[jnp.maximum(token_ids, 0)], segments)
        # No scan: its gradient copies what each layer keeps, and takes longer on a CPU.
        for layer in self.layers:
            x = layer(x, mask)
        return self.pool(x, mask)

    def pool(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Compute the logits, float32 [n], from the last layer's output [n, L, h]."""
        pooled = jnp.tanh(_apply(self.pooler, x[:, 0].astype(jnp.float32)))
        return _apply(self.classifier, pooled)[:, 0]


def _apply(linear: nnx.Linear, x: jax.Array) -> jax.Array:
    # In float32 whatever the layers' products are: it is a vector for each pair.
    kernel, bias = linear.kernel[...], cast(nnx.Param, linear.bias)[...]
    products = product("nh,ho->no", x, kernel, dtype="float32", precision=lax.Precision.HIGHEST)
    return products + bias[None]
