"""A BERT-family encoder as a retriever holds it; JAX is loaded with its first question."""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qpr_jax.encoders.cnn_encoder import question_list
from qpr_jax.encoders.cnn_format import CARD
from qpr_jax.encoders.sentence_transformers import (
    TOKENIZER,
    WEIGHTS,
    SentenceModel,
    file_names,
    sentence_model,
    weights_file,
)
from qpr_jax.errors import UserError
from qpr_jax.files import (
    Path,
    manifest_format,
    read_manifest,
    read_verified,
    replace_folder,
    write_atomically,
    write_manifest,
)
from qpr_jax.text.word_pieces import WordPieces

if TYPE_CHECKING:
    from qpr_jax.encoders.transformer_runtime import Runtime

T = TypeVar("T")
FORMAT = "qpr_jax sentence model 1"
# Words that questions are padded to: a compiled function each.
_WIDTHS = (8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384)
_AHEAD = 2  # blocks that devices are given before the vectors of one are asked for


@dataclass(frozen=True, eq=False)
class TransformerEncoder:
    """The model of a folder in the format of sentence-transformers, with its tokenizer.

    files: those of the folder, whole. `identity` names them by their content. compute_dtype: of the
    products; vectors in bfloat16 differ from others by 1e-2. Safe to use from several threads.
    """

    model: SentenceModel
    files: dict[str, bytes]
    identity: str
    settings: dict[str, Any]
    compute_dtype: str = "float32"

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.model.shape.hidden_size

    @property
    def vocabulary_size(self) -> int:
        """Word pieces that it tells apart."""
        return self.model.shape.vocab_size

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Vectors of questions, any strings: float32 [n, d] in the order of the questions.

        Words after the first `model.max_words`, marks included, are not seen.
        """
        return self._encode(self.pieces.ids(question_list(questions), self.model.max_words))

    def encode_words(self, words: np.ndarray) -> np.ndarray:
        """Vectors of ids int32 [n, L], zero-padded on the right: float32 [n, d]."""
        return self._encode([row[row > 0] for row in words])

    def _encode(self, ids: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
        vectors = np.empty((len(ids), self.dimension), np.float32)
        network = self._network
        blocks = _blocks(ids, self.model.max_words, network.words, network.devices)
        for rows, made in _ahead((rows, network.encode(words)) for rows, words in blocks):
            vectors[rows] = np.asarray(made)[: len(rows)]
        return vectors

    def warm_up(self) -> None:
        """Load and compile what the first question would wait for."""
        self.encode([""])

    def save(self, folder: Path) -> None:
        """Write the files and their manifest to `folder`, whole or not at all."""
        with replace_folder(folder) as part:
            for name, data in self.files.items():
                (part / name).parent.mkdir(exist_ok=True)
                with write_atomically(part / name) as file:
                    file.write(data)
            write_manifest(part, list(self.files), format=FORMAT, settings=self.settings)

    def trained(self, weights: dict[str, Any], settings: dict[str, Any]) -> TransformerEncoder:
        """The same model with other weights, pure and nested, and the settings they came of."""
        files = self.files | {WEIGHTS: weights_file(weights)}
        model = self.model._replace(weights=weights)
        return TransformerEncoder(model, files, _identity(files), settings)

    @functools.cached_property
    def pieces(self) -> WordPieces:
        """The tokenizer."""
        return WordPieces(self.files[TOKENIZER], self.model.shape.vocab_size)

    @functools.cached_property
    def _network(self) -> Runtime:
        from qpr_jax.encoders.transformer_runtime import compile_layers

        return compile_layers(self.model.shape, self.model.weights, self.compute_dtype)


def read_transformer(folder: Path, *, compute_dtype: str = "float32") -> TransformerEncoder:
    """The encoder of a folder of sentence-transformers, or of one that `save` wrote."""
    path = pathlib.Path(folder)
    names, settings = file_names(path), {}
    if manifest_format(path) == FORMAT:  # others have files of this name too
        manifest = read_manifest(path, format=FORMAT)
        settings = manifest.get("settings", {})
        files = {name: read_verified(path, name, manifest) for name in names}
        # Without one that says how to pool, or how much is read, it would be another encoder.
        if missing := sorted(manifest["files"].keys() - {*names, CARD}):
            raise UserError(
                f"{path}: expected the file {missing[0]}, found none; fetch the whole folder"
            )
    else:
        files = {name: (path / name).read_bytes() for name in names}
    model = sentence_model(files, path)
    return TransformerEncoder(model, files, _identity(files), settings, compute_dtype)


def _identity(files: dict[str, bytes]) -> str:
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    return hashlib.sha256(json.dumps([FORMAT, hashes]).encode()).hexdigest()


def _ahead(blocks: Iterable[T]) -> Iterator[T]:
    """The same, each given on when a few more were begun."""
    begun: collections.deque[T] = collections.deque()
    for block in blocks:
        begun.append(block)
        if len(begun) > _AHEAD:
            yield begun.popleft()
    yield from begun


def _blocks(
    ids: Sequence[Sequence[int] | np.ndarray],
    max_words: int,
    words_of_device: int,
    devices: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of questions of about one length, and their words, padded with -1: int32 [n, L].

    Few shapes, since each is compiled once: n is a power of two for each device.
    """
    widths = np.array([*(width for width in _WIDTHS if width < max_words), max_words])
    lengths = np.array([len(words) for words in ids], np.int64)
    of_width = np.searchsorted(widths, lengths)
    for i in np.unique(of_width):
        alike, width = np.flatnonzero(of_width == i), int(widths[i])
        most = devices << max(0, (words_of_device // width).bit_length() - 1)
        for start in range(0, len(alike), most):
            rows = alike[start : start + most]
            share = -(-len(rows) // devices)
            words = np.full((devices << (share - 1).bit_length(), width), -1, np.int32)
            for at, row in enumerate(rows):
                words[at, : len(ids[row])] = ids[row]
            yield rows, words
