"""The trained encoder without JAX, and the folder that holds it."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.encoders import cnn_kernels
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
from qpr_jax.machine import cpu_count
from qpr_jax.text.vocabulary import Vocabulary, vocabulary_from_bytes, write_vocabulary

FORMAT = "qpr_jax encoder 1"
VOCABULARY, SETTINGS = "vocabulary.json", "settings.json"
_WEIGHTS = "encoder.npz"

# Questions of a chunk: its features stay in the cache of a core.
_CHUNK = 512


@dataclass(frozen=True, eq=False)
class CnnEncoder:
    """The encoder of `encoders.cnn` without JAX, with its vocabulary and settings.

    embedding: float32 [V, e], row 0 (padding) zeros. kernels: float32 [w, e, f] each.
    biases: float32 [f] each. projection: float32 [sum of f, d], or [sum of f + e, d] where the
    scaled sum of the words is a feature too. normalize: vectors have length 1. `identity` names all
    of these by their content; an index carries the identity of its encoder.
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
    normalize: bool = False

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.projection.shape[1])

    @property
    def vocabulary_size(self) -> int:
        """Words that it tells apart."""
        return self.vocabulary.size

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Vectors of questions, any strings: float32 [n, d] in the order of the questions.

        Words after the first `max_words` of a question are not seen.
        """
        questions = question_list(questions)

        def encode(start: int) -> np.ndarray:
            chunk = questions[start : start + _CHUNK]
            words, offsets, _ = self.vocabulary.flat_ids(chunk, self.max_words)
            return self._encode(words, offsets)

        return self._joined(encode, len(questions))

    def warm_up(self) -> None:
        """Make now what the first questions would have to wait for: the tables of all words."""
        self._tables.make(np.arange(len(self.embedding)))

    def encode_words(self, words: np.ndarray) -> np.ndarray:
        """Vectors of word ids int32 [n, L], zero-padded on the right: float32 [n, d].

        The width L and the other rows change no vector. A row of padding is the empty question,
        tanh(bias) @ projection.
        """
        _check_words(words, len(self.embedding))

        def encode(start: int) -> np.ndarray:
            chunk = words[start : start + _CHUNK]
            lengths = np.count_nonzero(chunk, axis=1)
            return self._encode(chunk[chunk != 0], np.concatenate([[0], np.cumsum(lengths)]))

        return self._joined(encode, len(words))

    def save(self, folder: Path) -> None:
        """Write it to `folder`, whole or not at all."""
        write_cnn(
            folder,
            embedding=self.embedding,
            kernels=self.kernels,
            biases=self.biases,
            projection=self.projection,
            vocabulary=self.vocabulary,
            max_words=self.max_words,
            settings=self.settings,
            normalize=self.normalize,
        )

    def _encode(self, words: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return cnn_kernels.encode(
            self._tables,
            self.embedding,
            self._bias,
            self.projection,
            words,
            offsets,
            normalize=self.normalize,
        )

    def _joined(self, encode: Callable[[int], np.ndarray], count: int) -> np.ndarray:
        """What `encode` gives for each chunk, which starts at its argument; on all cores."""
        if count <= _CHUNK:
            return encode(0)
        vectors = np.empty((count, self.dimension), np.float32)

        def fill(start: int) -> None:
            vectors[start : start + _CHUNK] = encode(start)

        with concurrent.futures.ThreadPoolExecutor(cpu_count()) as pool:
            for _ in pool.map(fill, range(0, count, _CHUNK)):
                pass
        return vectors

    @functools.cached_property
    def _tables(self) -> cnn_kernels.FoldedTables:
        return cnn_kernels.FoldedTables(self.embedding, self.kernels)

    @functools.cached_property
    def _bias(self) -> np.ndarray:
        return np.concatenate(self.biases)


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


def write_cnn(
    folder: Path,
    *,
    embedding: np.ndarray,
    kernels: Sequence[np.ndarray],
    biases: Sequence[np.ndarray],
    projection: np.ndarray,
    vocabulary: Vocabulary,
    max_words: int,
    settings: dict[str, Any],
    normalize: bool = False,
) -> str:
    """Write an encoder to `folder` (the old one stays until the new is whole); its identity.

    Weights as in `CnnEncoder`, of any float type, stored as float32; `settings` must be JSON.
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
        write_vocabulary(part / VOCABULARY, vocabulary)
        more = {"normalize": True} if normalize else {}
        write_json(part / SETTINGS, {"max_words": max_words, **more, "settings": settings})
        write_manifest(part, [_WEIGHTS, VOCABULARY, SETTINGS], format=FORMAT)
        return _identity(arrays, vocabulary, max_words, normalize)


def read_cnn(folder: Path) -> CnnEncoder:
    """Read the encoder that `write_cnn` wrote; UserError where it is not whole."""
    manifest = read_manifest(folder, format=FORMAT)
    data = read_verified(folder, _WEIGHTS, manifest)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{folder}: {_WEIGHTS} holds no arrays ({error}); export again") from error
    vocabulary, settings = (
        read_verified(folder, name, manifest) for name in (VOCABULARY, SETTINGS)
    )
    return assembled(arrays, vocabulary, settings, folder)


def assembled(
    arrays: dict[str, np.ndarray],
    vocabulary_file: bytes,
    settings_file: bytes,
    folder: Path,
) -> CnnEncoder:
    """The encoder of arrays as in `arrays_of` and of two files as `write_cnn` writes them.

    UserError, with the folder, where they do not fit each other.
    """
    settings = _read_settings(settings_file, str(folder))
    vocabulary = vocabulary_from_bytes(vocabulary_file)
    windows = _check_weights(arrays, vocabulary, str(folder))
    return CnnEncoder(
        embedding=arrays["embedding"],
        kernels=tuple(arrays[f"kernel_{i}"] for i in range(windows)),
        biases=tuple(arrays[f"bias_{i}"] for i in range(windows)),
        projection=arrays["projection"],
        vocabulary=vocabulary,
        max_words=settings["max_words"],
        identity=_identity(arrays, vocabulary, settings["max_words"], settings["normalize"]),
        settings=settings["settings"],
        normalize=settings["normalize"],
    )


def arrays_of(encoder: CnnEncoder) -> dict[str, np.ndarray]:
    """The weights of an encoder: `embedding`, `kernel_0`, `bias_0`, ..., `projection`, float32."""
    kernels = itertools.chain.from_iterable(zip(encoder.kernels, encoder.biases, strict=True))
    arrays = (encoder.embedding, *kernels, encoder.projection)
    return dict(zip(_names(len(encoder.kernels)), arrays, strict=True))


def _names(windows: int) -> list[str]:
    of_windows = [f"{name}_{i}" for i in range(windows) for name in ("kernel", "bias")]
    return ["embedding", *of_windows, "projection"]


def _identity(
    arrays: dict[str, np.ndarray], vocabulary: Vocabulary, max_words: int, normalize: bool
) -> str:
    """A hash of what the encoder computes with, whatever files hold it."""
    facts = [FORMAT, max_words, normalize, vocabulary.bins, vocabulary.char_ngrams]
    digest = hashlib.sha256(json.dumps([*facts, vocabulary.words]).encode())
    for name in sorted(arrays):
        digest.update(json.dumps([name, arrays[name].shape]).encode())
        digest.update(np.ascontiguousarray(arrays[name], "<f4").data)
    return digest.hexdigest()


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
    if windows < 1 or set(_names(windows)) != arrays.keys():
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
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder}: {SETTINGS} is not JSON ({error}); export again") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("settings"), dict):
        raise UserError(f"{folder}: {SETTINGS} lacks `settings`; export the encoder again")
    _check_max_words(settings.get("max_words"), folder)
    if not isinstance(settings.setdefault("normalize", False), bool):
        raise UserError(
            f"{folder}: `normalize`: expected true or false, got {settings['normalize']!r}; export "
            "the encoder again"
        )
    return settings
