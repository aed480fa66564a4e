"""The teacher of a training: its vectors of all questions, computed once and cached."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.encoders.encoder import Encoder, encode_to_file
from qpr_jax.encoders.load import MINILM_WEIGHTS
from qpr_jax.encoders.transformer_encoder import OnnxEncoder
from qpr_jax.errors import UserError, counted
from qpr_jax.evaluation.retrieval import exact_search, rank
from qpr_jax.files import locked, user_cache, write_atomically
from qpr_jax.locations import read_encoder
from qpr_jax.models import unit_rows
from qpr_jax.training.config import TrainConfig, gives_vectors, naming, refuse_if

log = logging.getLogger(__name__)

NEIGHBORS = 10
SAMPLE = 50_000  # questions to compute principal components from
ROTATED = 20_000  # as many, where a student that starts from an encoder encodes them, too
_CHUNK = 16_384


class Teacher(NamedTuple):
    """Vectors of the Q questions of a training, followed by those of U unlabeled ones."""

    parts: tuple[np.ndarray, ...]  # memory-mapped, floating [n, t] each, together Q + U rows
    components: np.ndarray | None  # float32 [t, d], projects to a smaller student's dimension
    encoder: Encoder | None  # None if only its vectors are given

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """The teacher's vectors of these rows, of length 1: float32 [n, t]."""
        found = np.empty((len(rows), self.parts[0].shape[1]), np.float32)
        first = 0
        for part in self.parts:
            here = (rows >= first) & (rows < first + len(part))
            found[here] = part[rows[here] - first]
            first += len(part)
        return unit_rows(found)

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """The vectors that a student learns for these rows: float32 [n, d]."""
        vectors = self.vectors(rows)
        return vectors if self.components is None else unit_rows(vectors @ self.components)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The teacher's vectors of texts in the student's dimension; needs the encoder."""
        assert self.encoder is not None
        vectors = cached_vectors(self.encoder, texts)
        return vectors if self.components is None else vectors @ self.components

    def word_vectors(self, words: Sequence[str], dimension: int) -> np.ndarray:
        """The teacher's vectors of words, at most `dimension` centered components: float32."""
        assert self.encoder is not None
        vectors = unit_rows(np.asarray(cached_vectors(self.encoder, words)))
        vectors -= vectors.mean(axis=0)
        return vectors @ principal_components(vectors[:SAMPLE], dimension)


def read_teacher(config: TrainConfig) -> Encoder | None:
    """Read the encoder that is the teacher; None without one."""
    if not config.teacher.model or gives_vectors(config):
        return None
    with naming("teacher.model"):
        encoder = read_encoder(config.teacher.model)
    what = "`teacher.lists` needs embeddings of words, and a model in 8 bits has none, "
    what += f"got {config.teacher.model}"
    unfit = bool(config.teacher.lists) and isinstance(encoder, OnnxEncoder)
    refuse_if(unfit, "teacher.model", what, f"name a transformer, as `{MINILM_WEIGHTS}`")
    return encoder


def teacher_words(config: TrainConfig, teacher: Encoder | None) -> list[str]:
    """The words of `teacher.words`: those of two and more letters, in the teacher's order."""
    if not (config.teacher.words and teacher):
        return []
    if isinstance(teacher, OnnxEncoder):
        words = teacher.words()
    else:
        words, _ = teacher.word_embeddings()
    return [word for word in words if len(word) > 1 and word.isalpha()]


def neighbors(teacher: Teacher, count: int, queries: np.ndarray) -> np.ndarray:
    """The teacher's nearest of the first `count` rows to each query: int64 [n, NEIGHBORS]."""
    starts = range(0, count, _CHUNK)  # in chunks, since normalizing copies
    parts = [teacher.vectors(np.arange(i, min(i + _CHUNK, count))) for i in starts]
    return rank(exact_search(np.concatenate(parts)), queries, NEIGHBORS)


def cached_vectors(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Read the vectors of texts, float32 [n, d], from the user's cache, or compute and cache them.

    The next call resumes what a kill left.
    """
    digest = hashlib.sha256(encoder.fingerprint.encode())
    for text in texts:
        digest.update(json.dumps(text).encode())
    path = user_cache() / "teacher" / digest.hexdigest()[:32] / "vectors.npy"
    with locked(path.with_name(".lock"), wait=True):  # another process may compute the same
        if not path.is_file():
            log.info("computing %s of %s", counted(len(texts), "row"), path)
            dimension, fingerprint = encoder.dimension, encoder.fingerprint
            encode_to_file(path, texts, encoder.encode, dimension=dimension, encoder=fingerprint)
    return np.load(path, mmap_mode="r")


def given_vectors(model: str, questions: Sequence[Sequence[str]]) -> np.ndarray:
    """Read a user's file of vectors; if they do not fit, write the questions beside it."""
    path, count = pathlib.Path(model), sum(map(len, questions))
    try:
        vectors = np.lib.format.open_memmap(path, mode="r")
        wrong = f"{vectors.dtype} {list(vectors.shape)}"
        if vectors.ndim == 2 and vectors.dtype.kind == "f" and len(vectors) == count:
            good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
            if good.all():
                return vectors
            wrong = f"zeros or infinite numbers in row {good.argmin()}"
    except (OSError, ValueError, EOFError) as error:
        wrong = f"{error}"
    listed = _write_questions(path, questions)
    what = f"{model}: expected a .npy file of floats, {count:,} rows, got {wrong}; the questions, "
    what += f"in order, are in {listed}"
    raise UserError(what, setting="teacher.model", remedy="make the file from these questions")


def _write_questions(vectors: pathlib.Path, questions: Sequence[Sequence[str]]) -> pathlib.Path:
    """Write the questions beside a file of vectors, in a file that is named by their hash."""
    texts = itertools.chain.from_iterable(questions)
    data = "".join(json.dumps({"question": text}) + "\n" for text in texts).encode()
    path = vectors.with_suffix(f".questions-{hashlib.sha256(data).hexdigest()[:8]}.jsonl")
    with write_atomically(path) as file:
        file.write(data)
    return path


def principal_components(vectors: np.ndarray, dimension: int) -> np.ndarray:
    """The principal directions, which keep most of the inner products: float32 [t, dimension]."""
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    return np.ascontiguousarray(directions[:, ::-1][:, :dimension])


def nearest_rotation(vectors: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The rotation or reflection R for which `vectors @ R` is nearest to `targets`: float32 [d, d].

    Both are floating [n, d].

    Source:
      Schönemann (1966), "A Generalized Solution of the Orthogonal Procrustes Problem".
    """
    left, _, right = np.linalg.svd(vectors.T @ targets)
    return np.ascontiguousarray(left @ right)
