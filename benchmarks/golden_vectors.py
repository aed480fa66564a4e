"""The golden files of transformers: sentences, and their vectors by sentence-transformers itself.

    python -m benchmarks.golden_vectors --tiny tests/encoders/tiny_bert
    python -m benchmarks.golden_vectors --model FOLDER --out vectors.npz

The first makes a BERT of random weights, small enough to keep, with its vectors; the second those
of a model. Needs sentence-transformers (6.2.0 made the files kept), which the project does not.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import numpy as np

SENTENCES = [
    "How do I learn Python quickly?",
    "what is the best way to cook rice",
    "",
    "?",
    "Café naïve 東京 😀 straße İstanbul",
    "a " * 600,
    "don't stop-me now: 3.14 > 2,718",
    "\ttabs\nand   blanks ",
    "WHAT IS THE BEST WAY TO COOK RICE",
    "unbelievably pneumonoultramicroscopicsilicovolcanoconiosis",
]
WORDS = """
[PAD] [UNK] [CLS] [SEP] [MASK] how do i learn python quickly what is the best way to cook rice un
##believ ##ably don ' t stop - me now : 3 . 14 > 2 , 718 tabs and blanks ? a caf ##e ##s ##t ##ra
##ss cafe naive
"""


def make_tiny(folder: pathlib.Path) -> None:
    """A BERT of two small layers in the format of sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    words = WORDS.split()
    source = folder / "source"
    source.mkdir(parents=True)
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(str(source / "vocab.txt")).save_pretrained(source)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=40,
    )
    model = BertModel(config)
    for parameter in model.parameters():  # norms and biases too
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(source)
    transformer = Transformer(str(source), max_seq_length=32)
    parts = [transformer, Pooling(16, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder))
    import shutil

    shutil.rmtree(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    if given.tiny:
        make_tiny(given.tiny)
    model = SentenceTransformer(str(given.tiny or given.model), device="cpu")
    out = given.out or given.tiny / "vectors.npz"
    np.savez(out, sentences=json.dumps(SENTENCES), vectors=model.encode(SENTENCES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
