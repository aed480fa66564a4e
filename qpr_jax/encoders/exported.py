"""The trained encoder in NumPy alone, and the folder that holds it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import (
    Path,
    read_manifest,
    read_verified,
    replace_folder,
    write_atomically,
    write_json,
    write_manifest,
)
from qpr_jax.text.vocabulary import Vocabulary, vocabulary_from_bytes, write_vocabulary

FORMAT = "qpr_jax encoder 1"
_WEIGHTS, _VOCABULARY, _SETTINGS = "encoder.npz", "vocabulary.json", "settings.json"

# A chunk is what shares one table of products: the larger, the more often a word repeats in it.
# With 300 filters the chunk's maxima take 39 MB, the table at most 64 MB, a block 1 MB (about
# what the second-level cache of a core holds).
_CHUNK = 32_768
_TABLE_FLOATS = 16 << 20
_BLOCK_FLOATS = 1 << 18
_PROJECTED_ROWS = 4096


@dataclass(frozen=True, eq=False)
class ExportedEncoder:
    """The encoder of `encoders.cnn` in NumPy, with its vocabulary and settings.

    embedding: float32 [V, e], row 0 (padding) zeros. kernels: float32 [w, e, f] each.
    biases: float32 [f] each. projection: float32 [sum of f, d], or [sum of f + e, d] where the
    scaled sum of the words is a feature too. `identity` names weights,
    vocabulary and `max_words` by their content; an index carries the identity of its encoder.
    `settings` are those of the training, for the record. Safe to use from several threads.
    """

    embedding: np.ndarray
    kernels: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    projection: np.ndarray
    vocabulary: Vocabulary
    max_words: int
    identity: str
    settings: dict[str, Any]

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.projection.shape[1])

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Vectors of questions, any strings: float32 [n, d] in the order of the questions.

        Words after the first `max_words` of a question are not seen.
        """
        questions = question_list(questions)
        vectors = np.empty((len(questions), self.dimension), np.float32)
        for start in range(0, len(questions), _CHUNK):
            chunk = questions[start : start + _CHUNK]
            words, _ = self.vocabulary.word_ids(chunk, self.max_words)
            vectors[start : start + len(chunk)] = self.encode_words(words)
        return vectors

    def encode_words(self, words: np.ndarray) -> np.ndarray:
        """Vectors of word ids int32 [n, L], zero-padded on the right: float32 [n, d].

        The width L and the other rows change no vector (beyond rounding). A row of padding is the
        empty question, tanh(bias) @ projection.
        Source: Bonadiman, Kumar and Mittal (2019), section 2.1.1, equation (1).
        """
        _check_words(words, len(self.embedding))
        vectors = np.empty((len(words), self.dimension), np.float32)
        bias = np.concatenate(self.biases)
        for start in range(0, len(words), _CHUNK):
            chunk = words[start : start + _CHUNK]
            lengths = np.maximum(np.count_nonzero(chunk, axis=1), 1)
            order = np.argsort(lengths, kind="stable")
            maxima = _maxima(self.embedding, self.kernels, chunk[order], lengths[order])
            maxima += bias
            # tanh is monotone, so the maximum of the tanh is the tanh of the maximum.
            features = np.tanh(maxima, out=maxima)
            if len(self.projection) > len(bias):
                sums = _scaled_sums(self.embedding, chunk[order], lengths[order])
                features = np.concatenate([features, sums], axis=1)
            vectors[start + order] = _project(features, self.projection)
        return vectors


def question_list(questions: Sequence[str], name: str = "questions") -> list[str]:
    """`questions` as a list, if they are strings; UserError names the argument and the place."""
    if isinstance(questions, str | bytes | Mapping):
        kind = type(questions).__name__
        raise UserError(f"`{name}`: expected a list of strings, got a {kind}; pass [{name}]")
    try:
        result = list(questions)
    except TypeError:
        kind = type(questions).__name__
        raise UserError(f"`{name}`: expected a list of strings, got {kind}") from None
    for i, question in enumerate(result):
        if not isinstance(question, str):
            kind = type(question).__name__
            raise UserError(f"`{name}`: expected strings, got {kind} at position {i}; leave it out")
    return result


def write_export(
    folder: Path,
    *,
    embedding: np.ndarray,
    kernels: Sequence[np.ndarray],
    biases: Sequence[np.ndarray],
    projection: np.ndarray,
    vocabulary: Vocabulary,
    max_words: int,
    settings: dict[str, Any],
) -> str:
    """Write an encoder to `folder` (the old one stays until the new is whole); its identity.

    Weights as in `ExportedEncoder`, of any float type, stored as float32; `settings` must be JSON.
    """
    arrays = {"embedding": np.array(embedding, np.float32)}
    arrays["embedding"][0] = 0  # The encoder sees zeros at padding, whatever row 0 holds.
    for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        arrays[f"kernel_{i}"] = np.asarray(kernel, np.float32)
        arrays[f"bias_{i}"] = np.asarray(bias, np.float32)
    arrays["projection"] = np.asarray(projection, np.float32)
    _check_weights(arrays, vocabulary, str(folder))
    _check_max_words(max_words, str(folder))
    with replace_folder(folder) as part:
        with write_atomically(part / _WEIGHTS) as file:
            np.savez(file, allow_pickle=False, **arrays)
        write_vocabulary(part / _VOCABULARY, vocabulary)
        write_json(part / _SETTINGS, {"max_words": max_words, "settings": settings})
        write_manifest(part, [_WEIGHTS, _VOCABULARY, _SETTINGS], format=FORMAT)
        return _identity(read_manifest(part, format=FORMAT), max_words)


def read_export(folder: Path) -> ExportedEncoder:
    """Read the encoder that `write_export` wrote; UserError where it is not whole."""
    manifest = read_manifest(folder, format=FORMAT)
    settings = _read_settings(read_verified(folder, _SETTINGS, manifest), str(folder))
    vocabulary = vocabulary_from_bytes(read_verified(folder, _VOCABULARY, manifest))
    data = read_verified(folder, _WEIGHTS, manifest)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{folder}: {_WEIGHTS} holds no arrays ({error}); export again") from error
    windows = _check_weights(arrays, vocabulary, str(folder))
    return ExportedEncoder(
        embedding=arrays["embedding"],
        kernels=tuple(arrays[f"kernel_{i}"] for i in range(windows)),
        biases=tuple(arrays[f"bias_{i}"] for i in range(windows)),
        projection=arrays["projection"],
        vocabulary=vocabulary,
        max_words=settings["max_words"],
        identity=_identity(manifest, settings["max_words"]),
        settings=settings["settings"],
    )


def _identity(manifest: dict[str, Any], max_words: int) -> str:
    files = manifest["files"]
    parts = [FORMAT, files[_WEIGHTS]["sha256"], files[_VOCABULARY]["sha256"], max_words]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _maxima(
    embedding: np.ndarray, kernels: Sequence[np.ndarray], words: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Maxima over time before bias and tanh, float32 [n, sum of f], of rows sorted by length.

    A convolution is a sum of per-word products, so each product is made once for a distinct word
    of the chunk and not once for a token: on chunks of real questions 5 to 7 times faster than a
    matrix product over the unfolded windows (300 or 600 filters of window 5). Filters are taken
    in slices that bound the table.
    """
    present = np.zeros(len(embedding), bool)
    present[words] = True
    present[0] = True  # Padding must be row 0 of the table.
    distinct = np.flatnonzero(present)
    renumbered = np.zeros(len(embedding), np.int64)
    renumbered[distinct] = np.arange(len(distinct))
    rows, ids = embedding[distinct], renumbered[words]

    maxima = np.empty((len(words), sum(kernel.shape[2] for kernel in kernels)), np.float32)
    offset = 0
    for kernel in kernels:
        window, _, filters = kernel.shape
        width = min(filters, max(16, _TABLE_FLOATS // (window * len(distinct))))
        for low in range(0, filters, width):
            tables = [rows @ kernel[k, :, low : low + width] for k in range(window)]
            out = maxima[:, offset + low : offset + min(low + width, filters)]
            for start, stop in _equal_runs(lengths, _BLOCK_FLOATS // width):
                block = ids[start:stop, : lengths[start]]
                _max_over_time(tables, block, out[start:stop])
        offset += filters
    return maxima


def _scaled_sums(embedding: np.ndarray, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sums of the words' embeddings over the root of their number, of rows sorted by length."""
    sums = np.empty((len(words), embedding.shape[1]), np.float32)
    for start, stop in _equal_runs(lengths, _BLOCK_FLOATS // embedding.shape[1]):
        length = int(lengths[start])
        embedding[words[start:stop, :length]].sum(axis=1, out=sums[start:stop])
        sums[start:stop] /= np.float32(length) ** 0.5
    return sums


def _project(features: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """features @ projection, summed in float64 and in blocks of rows that bound its memory.

    BLAS adds up in another order for one row than for many; in float32 that alone changes a
    question's vector by up to 4e-6 from batch to batch.
    """
    result = np.empty((len(features), projection.shape[1]), np.float32)
    for start in range(0, len(features), _PROJECTED_ROWS):
        block = slice(start, start + _PROJECTED_ROWS)
        result[block] = np.matmul(features[block], projection, dtype=np.float64)
    return result


def _equal_runs(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of rows of one length and of at most about `limit` words."""
    start = 0
    while start < len(lengths):
        length = int(lengths[start])
        same = int(np.searchsorted(lengths, length, side="right"))
        stop = min(same, start + max(1, limit // length))
        yield start, stop
        start = stop


def _max_over_time(tables: Sequence[np.ndarray], ids: np.ndarray, out: np.ndarray) -> None:
    """Write the maxima of rows `ids` [n, L] without padding inside to `out` [n, f]."""
    window, length = len(tables), ids.shape[1]
    left = window // 2
    padded = np.pad(ids, ((0, 0), (left, window - 1 - left)))
    total = tables[0][padded[:, :length]]
    for k in range(1, window):
        total += tables[k][padded[:, k : k + length]]
    total.max(axis=1, out=out)


def _check_words(words: np.ndarray, rows: int) -> None:
    if words.ndim != 2 or words.shape[1] < 1 or not np.issubdtype(words.dtype, np.integer):
        raise UserError(
            f"`words`: expected integers [n, L], got {words.dtype} {list(words.shape)}; "
            "see `Vocabulary.word_ids`"
        )
    if words.size and (words.min() < 0 or words.max() >= rows):
        raise UserError(
            f"`words`: expected ids from 0 to {rows - 1}, got {words.min()} to {words.max()}; "
            "use this encoder's vocabulary"
        )


def _check_weights(arrays: dict[str, np.ndarray], vocabulary: Vocabulary, folder: str) -> int:
    """The number of windows, if types and shapes fit each other and the vocabulary."""
    windows = (len(arrays) - 2) // 2
    names = [f"{name}_{i}" for i in range(windows) for name in ("kernel", "bias")]
    if windows < 1 or {"embedding", "projection", *names} != arrays.keys():
        raise UserError(f"{folder}: unexpected weights {sorted(arrays)}; export the encoder again")
    for name, array in arrays.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise UserError(f"{folder}: `{name}` is not finite float32; export the encoder again")
    embedding, projection = arrays["embedding"], arrays["projection"]
    kernels = [arrays[f"kernel_{i}"] for i in range(windows)]
    filters = [kernel.shape[-1] if kernel.ndim == 3 else 0 for kernel in kernels]
    fits = (
        embedding.ndim == 2
        and len(embedding) == vocabulary.size
        and not embedding[0].any()
        and all(k.ndim == 3 and k.size and k.shape[1] == embedding.shape[1] for k in kernels)
        and all(arrays[f"bias_{i}"].shape == (n,) for i, n in enumerate(filters))
        and projection.ndim == 2
        and len(projection) in (sum(filters), sum(filters) + embedding.shape[1])
        and projection.shape[1] > 0
    )
    if not fits:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise UserError(
            f"{folder}: the weights ({shapes}) do not fit each other and a vocabulary of "
            f"{vocabulary.size} ids; export the encoder again"
        )
    return windows


def _check_max_words(max_words: object, folder: str) -> None:
    if isinstance(max_words, bool) or not isinstance(max_words, int) or max_words < 1:
        raise UserError(f"{folder}: `max_words`: expected 1 or more, got {max_words!r}")


def _read_settings(data: bytes, folder: str) -> dict[str, Any]:
    try:
        settings = json.loads(data)
    except ValueError as error:
        raise UserError(f"{folder}: {_SETTINGS} is not JSON ({error}); export again") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("settings"), dict):
        raise UserError(f"{folder}: {_SETTINGS} lacks `settings`; export the encoder again")
    _check_max_words(settings.get("max_words"), folder)
    return settings
