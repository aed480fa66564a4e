"""From the parameters of a training to the encoder in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from qpr_jax.encoders.exported import ExportedEncoder, write_export
from qpr_jax.files import Path
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.training.settings import identity
from qpr_jax.training.step import Params


def weights(params: Params) -> dict[str, Any]:
    """The encoder's arrays, copied to NumPy, under the names of `ExportedEncoder`."""
    # A copy: a step donates its state, and must not do so to memory that is still read here.
    tree = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(params)))
    tree["embedding"][0] = 0
    return {
        "embedding": tree["embedding"],
        "kernels": tuple(
            np.ascontiguousarray(tree["kernels"][i].transpose(1, 0, 2))
            for i in sorted(tree["kernels"])
        ),
        "biases": tuple(tree["biases"][i] for i in sorted(tree["biases"])),
        "projection": tree["projection"],
    }


def exported(params: Params, vocabulary: Vocabulary, settings: ConfigDict) -> ExportedEncoder:
    """The encoder in NumPy, in memory, to score it between steps."""
    return ExportedEncoder(
        **weights(params),
        vocabulary=vocabulary,
        max_words=settings.max_words,
        identity="",
        settings={},
    )


def write_encoder(
    folder: Path, params: Params, vocabulary: Vocabulary, settings: ConfigDict
) -> None:
    """Write the encoder to `folder`, from which NumPy alone reads it."""
    write_export(
        folder,
        **weights(params),
        vocabulary=vocabulary,
        max_words=settings.max_words,
        settings=identity(settings),
    )
