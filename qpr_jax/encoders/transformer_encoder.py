"""Transformers: in the format of sentence-transformers by JAX, or in 8 bits by ONNX Runtime.

JAX is loaded with the first question, and never by ONNX Runtime. `experiments.eight_bits` writes a
model for that. Threads of Python run it, each a block of texts with equally many tokens; ONNX
Runtime has no thread of its own, so a fork loses none. A text has one vector, to the last bits of
float32, whatever else is encoded with it.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from qpr_jax.encoders.encoder import EncoderSummary, read_facts, say_cut, serialize_tensors
from qpr_jax.encoders.sentence_transformers import (
    CONFIG,
    LENGTHS,
    TOKENIZER,
    WEIGHTS,
    named_tensors,
    optional_files,
    parse_model,
    read_files,
)
from qpr_jax.errors import UserError, needs
from qpr_jax.files import StrPath, read_manifest, read_verified
from qpr_jax.models import BertShape, unit_rows
from qpr_jax.running import cpu_count
from qpr_jax.text.cleaning import as_texts
from qpr_jax.text.tokenizer import WordPieces
from qpr_jax.text.vocabulary import LETTERS, Spelling

if TYPE_CHECKING:
    from qpr_jax.models.bert import Runtime

FORMAT = "qpr_jax sentence model 1"
ONNX_FORMAT = "qpr_jax onnx model 1"
MODEL, SETTINGS, WORDS = "model.onnx", "settings.json", "words.txt"
INPUT = "input_ids"
_FACTS = {
    "dimension": int,
    "max_tokens": int,
    "normalize": bool,
    "vocabulary_size": int,
    "settings": dict,
}
_BLOCK_TOKENS = 1024  # of a run: twice as many or half as many are slower


@dataclass(frozen=True, eq=False)
class TransformerEncoder:
    """An `encoders.encoder.Encoder` in the format of sentence-transformers.

    Attributes:
      shape, max_tokens, weights: as of `parse_model`.
      contents: all files of the folder that define the encoder, by name.
      settings: of its training, flat.
    """

    shape: BertShape
    max_tokens: int
    weights: dict[str, Any]
    contents: dict[str, bytes]
    settings: dict[str, Any]

    def __repr__(self) -> str:
        layers = self.shape.num_hidden_layers
        sizes = f"{self.dimension} dimensions, {layers} layers, reads {self.max_tokens} tokens"
        return f"<TransformerEncoder: {sizes}>"

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the files."""
        files = sorted(self.contents.items())
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files}
        return hashlib.sha256(json.dumps([FORMAT, hashes]).encode()).hexdigest()

    @property
    def model_type(self) -> str:
        """The kind of transformer that its `config.json` names."""
        return str(json.loads(self.contents[CONFIG]).get("model_type", "bert"))

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.shape.hidden_size

    @property
    def normalize(self) -> bool:
        """Whether vectors have length 1."""
        return self.shape.normalize

    @property
    def precision(self) -> str:
        """Of float32 products: that of its training, unless bfloat16 products were trained."""
        trained_in_float32 = self.settings.get("encoder.compute_dtype", "float32") == "float32"
        name = self.settings.get("precision", "highest")
        return name if trained_in_float32 and name in ("high", "default") else "highest"

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, d], in the order of the questions."""
        ids, cut = self.tokenizer.id_lists(as_texts(questions), self.max_tokens)
        if cut:
            say_cut(self, cut, len(ids))
        vectors = np.empty((len(ids), self.dimension), np.float32)
        self._runtime.fill(vectors, ids, self.max_tokens)
        return vectors

    def files(self) -> dict[str, bytes]:
        """Return the contents of its folder, in the format of sentence-transformers."""
        return self.contents

    def manifest(self) -> dict[str, Any]:
        """The format of its folder, and the settings of its training, which no file holds."""
        return {"format": FORMAT, "settings": self.settings}

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        return EncoderSummary(
            library="sentence-transformers",
            description="A transformer of the BERT family, in the format of sentence-transformers.",
            vocabulary_size=self.shape.vocab_size,
            limits=(f"It reads at most {self.max_tokens:,} word pieces of a question.",),
        )

    def known_words(self, words: Collection[str]) -> set[str] | None:
        """Return which words, in lower case, are one piece; None if it was trained on more."""
        return None if self.settings else self.tokenizer.known_words(words)

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """The word pieces that are whole words, and their token embeddings, float32 [n, e]."""
        words = self.tokenizer.whole_words()
        rows = np.asarray(self.weights["embedding"], np.float32)
        return list(words), rows[list(words.values())]

    def trained(
        self, weights: dict[str, Any], settings: dict[str, Any], *, max_tokens: int
    ) -> TransformerEncoder:
        """Return the same model after a training, with its flat settings.

        weights: parameters of `BertEncoder` as pure nested dictionaries.
        max_tokens: that the training read. A limit below the model's becomes that of the encoder.
        """
        contents = self.contents | {WEIGHTS: serialize_tensors(named_tensors(weights))}
        if max_tokens < self.max_tokens:
            name, key = LENGTHS[0]
            config = json.loads(contents.get(name, b"{}")) | {key: max_tokens}
            contents[name] = json.dumps(config, indent=2).encode() + b"\n"
        limit = min(max_tokens, self.max_tokens)
        return TransformerEncoder(self.shape, limit, weights, contents, settings)

    @functools.cached_property
    def tokenizer(self) -> WordPieces:
        """From questions to token ids."""
        return WordPieces(self.contents[TOKENIZER], self.shape.vocab_size)

    @functools.cached_property
    def _runtime(self) -> Runtime:
        with needs("a transformer", ".[train]"):
            from qpr_jax.models.bert import Runtime

        return Runtime(self.shape, self.weights, self.precision)


def read_transformer(folder: StrPath) -> TransformerEncoder:
    """Read a folder of sentence-transformers, verified if `save_encoder` wrote it."""
    contents, settings = read_files(folder, FORMAT, optional_files(folder))
    return TransformerEncoder(*parse_model(contents, folder), contents, settings)


@dataclass(frozen=True, eq=False)
class OnnxEncoder:
    """An `encoders.encoder.Encoder` whose model is a file of ONNX.

    Attributes:
      model: maps token ids, int64 [n, L], to vectors, float32 [n, d]; it gets no padding.
      tokenizer: a `tokenizer.json` of the library `tokenizers`.
      vocabulary_size: rows of the embedding table.
      settings: of its training, flat.
      dictionary: words, the most frequent first, in lines of UTF-8. The vector of a text with a
        word that may misspell one of them is the mean of those of the text and of its correction.
    """

    model: bytes = field(repr=False)
    tokenizer: bytes = field(repr=False)
    dimension: int
    max_tokens: int
    normalize: bool
    vocabulary_size: int
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    dictionary: bytes = field(default=b"", repr=False)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the files."""
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in self.files().items()}
        return hashlib.sha256(json.dumps([ONNX_FORMAT, hashes]).encode()).hexdigest()

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, d], in the order of the questions."""
        texts = as_texts(questions)
        ids, cut = self._pieces.id_lists(texts, self.max_tokens)
        if cut:
            say_cut(self, cut, len(ids))
        vectors, corrected = self._encode(ids), self._corrected(texts)
        if rows := [*corrected]:
            ids, _ = self._pieces.id_lists([*corrected.values()], self.max_tokens)
            means = (vectors[rows] + self._encode(ids)) / 2
            vectors[rows] = unit_rows(means) if self.normalize else means
        return vectors

    def _corrected(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the corrections of texts by their positions, of those that have one."""
        found = dict[int, str]()
        for row, text in enumerate(texts):
            if not self._words >= {*LETTERS.findall(text.lower())}:  # most texts have known ones
                corrected = self._spelling.corrected(text)
                found |= {row: corrected} if corrected != text else {}
        return found

    def _encode(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        vectors = np.empty((len(ids), self.dimension), np.float32)

        def encode(rows: np.ndarray) -> None:
            tokens = np.array([ids[row] for row in rows], np.int64)
            (vectors[rows],) = self._session.run(None, {INPUT: tokens})

        blocks = blocks_of_equal_length(np.fromiter(map(len, ids), np.int64, len(ids)))
        if len(blocks) == 1:
            encode(blocks[0])
        elif blocks:
            with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
                for _ in pool.map(encode, blocks):
                    pass
        return vectors

    def files(self) -> dict[str, bytes]:
        """Return the contents of its folder: model.onnx, tokenizer.json, settings.json, words.txt.

        The last is missing without a dictionary.
        """
        facts = {name: getattr(self, name) for name in _FACTS}
        text = json.dumps(facts, indent=2, allow_nan=False) + "\n"
        files = {MODEL: self.model, TOKENIZER: self.tokenizer, SETTINGS: text.encode()}
        return files | ({WORDS: self.dictionary} if self.dictionary else {})

    def manifest(self) -> dict[str, Any]:
        """Return the format of its folder."""
        return {"format": ONNX_FORMAT}

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        return EncoderSummary(
            library="qpr_jax",
            description="A transformer with 8-bit weights, by ONNX Runtime on the CPU.",
            vocabulary_size=self.vocabulary_size,
            limits=(f"It reads at most {self.max_tokens:,} word pieces of a question.",),
        )

    def known_words(self, words: Collection[str]) -> set[str] | None:
        """Return which words, in lower case, are one piece; None if it was trained on more."""
        return None if self.settings else self._pieces.known_words(words)

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """UserError: its word pieces have no embeddings of their own outside of the model."""
        what = "expected an encoder with embeddings of words, got one of ONNX"
        raise UserError(what, remedy="name the transformer that it was made from")

    def words(self) -> Sequence[str]:
        """The word pieces that are whole words."""
        return list(self._pieces.whole_words())

    @functools.cached_property
    def _pieces(self) -> WordPieces:
        return WordPieces(self.tokenizer, self.vocabulary_size)

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.dictionary.decode("utf-8", "replace").split())

    @functools.cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(self.dictionary.decode("utf-8", "replace").split())

    @functools.cached_property
    def _session(self) -> Any:
        import onnxruntime  # which a convolutional encoder does not need

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # A kept arena would never shrink, and a fork could leave its lock held.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        try:
            providers = ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(self.model, options, providers=providers)
            last = np.array([[self.vocabulary_size - 1]])
            fits = [found.shape for found in session.run(None, {INPUT: last})]
        except Exception as error:  # the library raises no narrower class
            fits = [str(error).splitlines()[0][:200]]
        if fits != [(1, self.dimension)]:
            what = f"{MODEL}: expected a model of vectors [n, {self.dimension}], got {fits}"
            raise UserError(what, remedy="export or fetch it again")
        return session


def blocks_of_equal_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Divide rows into blocks of one length, of about 1,024 tokens each, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)
    blocks = []
    for rows in filter(len, groups):
        size = max(1, _BLOCK_TOKENS // max(1, int(lengths[rows[0]])))
        blocks += [rows[start : start + size] for start in range(0, len(rows), size)]
    return blocks


def read_onnx(folder: StrPath) -> OnnxEncoder:
    """Read an encoder from its folder; UserError where it is incomplete or damaged."""
    manifest = read_manifest(folder, format=ONNX_FORMAT)
    model, tokenizer = (read_verified(folder, name, manifest) for name in (MODEL, TOKENIZER))
    facts = read_facts(folder, SETTINGS, manifest, _FACTS)
    words = read_verified(folder, WORDS, manifest) if WORDS in manifest["files"] else b""
    return OnnxEncoder(model, tokenizer, **{name: facts[name] for name in _FACTS}, dictionary=words)
