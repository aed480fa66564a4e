"""An encoder for mteb, the Massive Text Embedding Benchmark.

mteb is imported for the metadata, PyTorch for similarities, neither for encoding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances, paired_euclidean_distances

from qpr_jax.encoders.encoder import Encoder, encode_in_parts, parse_tensors
from qpr_jax.encoders.sentence_transformers import WEIGHTS
from qpr_jax.errors import UserError, needs

if TYPE_CHECKING:
    import torch
    from mteb.models import ModelMeta


class MtebEncoder:
    """An encoder of ours with the methods of `mteb.models.EncoderProtocol`.

        results = mteb.evaluate(MtebEncoder(encoder), mteb.get_tasks(tasks=["STS12"]))

    Vectors of length 1 are compared by their cosine, others by minus their Euclidean distance,
    which order as the squared distance of a search does.
    """

    def __init__(
        self, encoder: Encoder, *, name: str = "qpr_jax/encoder", languages: Sequence[str] = ()
    ) -> None:
        """Wrap an encoder, such as `qpr_jax.read_encoder("runs/mine")`.

        Args:
          encoder: the encoder.
          name: ORGANIZATION/MODEL in mteb's results; UserError without an organization.
          languages: that it is made for, as `eng-Latn`; if empty, not known.
        """
        if "/" not in name:
            raise UserError(f"`name`: expected ORGANIZATION/MODEL, got {name!r}")
        self.encoder, self.name, self.languages = encoder, name, [*languages]

    @functools.cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """What mteb keeps with the results; UserError without mteb, or for unknown languages."""
        with needs("the facts of a model", "mteb"):
            from mteb.languages import check_language_code
            from mteb.models import ModelMeta
            from mteb.models.model_meta import ScoringFunction
        for code in self.languages:
            try:
                check_language_code(code)
            except ValueError as error:
                what = f"`languages`: expected codes such as eng-Latn, got {code!r}"
                raise UserError(what) from error
        encoder = self.encoder
        parameters, size = _weights(encoder)
        cosine, euclidean = ScoringFunction.COSINE, ScoringFunction.EUCLIDEAN
        return ModelMeta(
            name=self.name,
            revision=encoder.fingerprint,
            languages=self.languages or None,
            n_parameters=parameters,
            memory_usage_mb=size / 2**20,
            max_tokens=encoder.max_tokens,
            embed_dim=encoder.dimension,
            framework=["JAX", "NumPy"],
            similarity_fn_name=cosine if encoder.normalize else euclidean,
            use_instructions=False,
            loader=None,  # mteb gets the model itself
            release_date=None,
            license=None,
            open_weights=None,
            public_training_code=None,
            public_training_data=None,
            training_datasets=None,
        )

    def encode(self, inputs: Iterable[Mapping[str, Any]], **options: Any) -> np.ndarray:
        """Encode the texts of mteb's batches: float32 [n, dimension], in their order.

        inputs: batches, each with a list of strings under `text`. Options are ignored: encoders
        have no prompts, and the size of a batch changes no vector.
        """
        return encode_in_parts(self.encoder, [text for batch in inputs for text in batch["text"]])

    def similarity(
        self, embeddings1: Any, embeddings2: Any, *, paired: bool = False
    ) -> torch.Tensor:
        """Similarities of all vectors [n, d] to all others [m, d]: float32 [n, m]."""
        import torch

        one, other = map(np.atleast_2d, (embeddings1, embeddings2))
        found = similarities(one, other, normalized=self.encoder.normalize, paired=paired)
        return torch.from_numpy(found)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Similarities of vectors [n, d] to those of the same rows [n, d]: float32 [n]."""
        return self.similarity(embeddings1, embeddings2, paired=True)


def similarities(
    one: np.ndarray, other: np.ndarray, *, normalized: bool, paired: bool = False
) -> np.ndarray:
    """Cosines of `normalized` vectors, else minus Euclidean distances: float32 [n, m].

    Distances are computed in float64: products of float32 lose those of near vectors. If `paired`,
    rows [n, d] and [n, d] belong together: float32 [n].
    """
    if normalized:
        return np.einsum("nd,nd->n", one, other) if paired else one @ other.T
    return -(paired_euclidean_distances if paired else euclidean_distances)(one, other)


def _weights(encoder: Encoder) -> tuple[int, int]:
    """Return how many parameters an encoder has, and their bytes."""
    tensors = parse_tensors(encoder.files()[WEIGHTS], WEIGHTS).values()
    floats = [tensor for tensor in tensors if tensor.dtype.kind == "f"]  # not ids of positions
    return sum(tensor.size for tensor in floats), sum(tensor.nbytes for tensor in floats)
