"""From the parameters of a training to the encoder that answers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.text.vocabulary import Vocabulary
from qpr_jax.training.config import TrainConfig, identity
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.train_step import Params


def weights(params: Params) -> dict[str, Any]:
    """The convolutional encoder's arrays, in NumPy, under the names of `CnnEncoder`."""
    tree = _copied(params)
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


def exported(
    params: Params, dataset: TrainDataset, config: TrainConfig
) -> CnnEncoder | TransformerEncoder:
    """The encoder in memory, to score it between steps or to save it."""
    if dataset.pretrained:
        return dataset.pretrained.trained(_copied(params), identity(config))
    assert isinstance(dataset.vocabulary, Vocabulary)
    return CnnEncoder(
        **weights(params),
        vocabulary=dataset.vocabulary,
        max_tokens=config.text.max_tokens,
        settings=identity(config),
        normalize=config.encoder.normalize,
    )


def _copied(params: Params) -> dict[str, Any]:
    # A copy: a step donates its state, and must not do so to memory that is still read here.
    tree: dict[str, Any] = jax.tree.map(np.array, nnx.to_pure_dict(jax.device_get(params)))
    return tree
