"""Write the golden files of transformers: sentences, and their vectors by sentence-transformers.

    python -m tests.encoders.golden_vectors --tiny tests/encoders/tiny_bert
    python -m tests.encoders.golden_vectors --model FOLDER --out tests/encoders/minilm_vectors.npz

The first command creates a small BERT with random weights, and its vectors; the second the vectors
of a given model, here all-MiniLM-L6-v2, for more sentences. Needs sentence-transformers, which the
project does not depend on; version 6.2.0 wrote the files in the repository.
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
# For a model with a full vocabulary.
MORE = [
    "how do i mend a flat tyre on my bicycle",
    "How can I repair a puncture of a bike?",
    "Is it safe to eat rice that was cooked yesterday?",
    "why",
    "WHY?!",
    "iPhone vs. Android: wHiCh oNe iS bEtTeR foR a BEGINNER",
    "Was kostet eine Fahrkarte von München nach Zürich?",
    "¿Cuántos años tenía Cervantes cuando escribió el Quijote?",
    "Où puis-je acheter des crêpes à Besançon ?",
    "как быстро выучить новый язык",
    "πώς μαγειρεύω το ρύζι",
    "如何快速学习编程",
    "東京からパリまでいくらですか",
    "파이썬을 배우는 방법",
    "كيف أتعلم البرمجة",
    "איך לומדים לנגן בגיטרה",
    "मैं हिंदी कैसे सीखूँ",
    "วิธีหุงข้าว",
    "Can I mix English и русский und Deutsch in 一 question?",
    "😀",
    "what does 🤷🏽\u200d♀️ mean 👩\u200d👩\u200d👧",
    "ᚠᛇᚻ ꙮ 𓀀 𐍈",
    "Zalgo: h\u0310e\u0301\u0316l\u0334l\u0323o\u0489",
    "e\u0301 and é, ﬁ and fi, \uff21 and A",
    "zero\u200bwidth, soft\u00adhyphen, no\u00a0break, \ufeffmark, null\x00byte, \x1b[31m",
    "[CLS] is [MASK] a [SEP] word [PAD] or [UNK]",
    "3.14159265358979323846264338327950288419716939937510",
    "1 + 1 = 2; 10^6 / 7 ≈ 142,857.14; -40 °C = -40 °F; £9.99, €8,50, ₹100, 50 %",
    "f(x) = ∫ e^{-x²} dx, ∀x ∈ \u211d: \\frac{1}{2}",
    "for (int i = 0; i < n; ++i) { a[i] = *p++; } // why is it slow?",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org @name #tag",
    "x" * 150,
    "antidisestablishmentarianism " * 60,
    "?" * 400,
    "¡" + "¿" * 20,
    " ".join(f"{i}" for i in range(300)),
    "The end of a long question is not seen, or is it? " * 30,
    "\r\n\n \u3000",
    "don't, won't, it's, o'clock, “quotes” and \u2018these\u2019 — dashes \u2013 too…",
    "the the the the the the the the",
]
WORDS = """
[PAD] [UNK] [CLS] [SEP] [MASK] how do i learn python quickly what is the best way to cook rice un
##believ ##ably don ' t stop - me now : 3 . 14 > 2 , 718 tabs and blanks ? a caf ##e ##s ##t ##ra
##ss cafe naive
"""


def make_tiny(folder: pathlib.Path) -> None:
    """Create a BERT of two small layers in the format of sentence-transformers."""
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
    sentences = SENTENCES if given.tiny else SENTENCES + MORE
    np.savez_compressed(out, sentences=json.dumps(sentences), vectors=model.encode(sentences))
    return 0


if __name__ == "__main__":
    sys.exit(main())
