"""An encoder: what it offers, its weights, and how it encodes the many questions of a table."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import math
import os
import pathlib
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qpr_jax.errors import UserError, counted, shortened
from qpr_jax.files import (
    StrPath,
    locked,
    name_in_errors,
    parse_json,
    read_object,
    read_verified,
    write_json,
)
from qpr_jax.running import progress
from qpr_jax.text.tokenizer import plain_words

log = logging.getLogger("qpr_jax")
CARD = "README.md"  # the model card in the folder of a published encoder
_PART = 4_096  # questions that are encoded between two looks at the clock
_said_cut: weakref.WeakSet[Encoder] = weakref.WeakSet()  # those of which a warning was logged
MULTILINGUAL = "hf://sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
SAMPLE = 1_000  # texts that are looked at
# What both packaged encoders lack of the plain words of a table (see `text.tokenizer.plain_words`):
# questions and help tickets in English 2 to 12 %, help tickets with typing errors and abbreviations
# in each row 32 to 39 %, tables in French, Spanish, German, Czech and other languages 58 to 100 %.
_MOST_UNKNOWN = 0.4  # of the plain words
# A text in another language: of 4,400 English ones none, of German, Spanish and French 30 to 100 %.
_LEAST_WORDS, _LEAST_UNKNOWN = 3, 0.75  # plain words, and the share of them that it lacks
_FEW = 1  # such texts cause no warning
_MOST_CHARACTERS = 2_000  # of a text
CHUNK = 16_384  # questions in memory at once


@dataclass(frozen=True)
class EncoderSummary:
    """The facts of an encoder that `qpr info`, the model card and the error analysis print.

    Attributes:
      library: the library that loads `Encoder.files`, as the Hugging Face hub spells it.
      description: the architecture, in a sentence.
      vocabulary_size: rows of the embedding table.
      words: the words with an embedding of their own; None for a tokenizer of word pieces.
      limits: what the encoder cannot distinguish, a sentence each.
    """

    library: str
    description: str
    vocabulary_size: int
    words: tuple[str, ...] | None = field(default=None, repr=False)  # many
    limits: tuple[str, ...] = ()


class Encoder(Protocol):
    """From questions to vectors; safe to use from several threads.

    An encoder of one's own is a subclass with `fingerprint`, `dimension` and `encode`; what else
    has a body below may stay. `Retriever.build(questions, encoder=encoder)` indexes with it.
    `files` and `manifest` let a retriever with it be saved, and `register_encoder` lets it be
    loaded; `examples/custom_encoder.py` has all of them.
    """

    @property
    def fingerprint(self) -> str:
        """Hash of what the encoder computes with, whatever files hold it."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a question that are read, the same in training, index and serving; 0: all."""
        return 0

    @property
    def normalize(self) -> bool:
        """Whether vectors have length 1."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of its training, flat; empty if it was trained elsewhere."""
        return {}

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        """Encode any strings: float32 [n, dimension], in the order of the questions."""

    def files(self) -> dict[str, bytes]:
        """Return the contents of its folder by name, without the manifest and the model card."""
        raise _lacks(self, "files")

    def manifest(self) -> dict[str, Any]:
        """Return the facts of its folder's manifest: the `format`, and what no file holds."""
        raise _lacks(self, "a manifest")

    def summary(self) -> EncoderSummary:
        """Facts for people."""
        return EncoderSummary("", type(self).__name__, 0)

    def known_words(self, words: Collection[str]) -> set[str] | None:
        """Return which words, in lower case, it learned as a whole; None if it cannot tell."""
        return None

    def word_embeddings(self) -> tuple[Sequence[str], np.ndarray]:
        """Return the words with an embedding of their own, and these, float32 [n, e]."""
        raise _lacks(self, "embeddings of words")


def _lacks(encoder: Encoder, what: str) -> UserError:
    return UserError(
        f"expected an encoder with {what}, got {type(encoder).__name__} without",
        remedy="define the method of `qpr_jax.Encoder`, as `examples/custom_encoder.py` does",
    )


def say_cut(encoder: Encoder, cut: int, count: int) -> None:
    """Warn of texts that are longer than an encoder reads, once for each encoder."""
    if encoder not in _said_cut:
        _said_cut.add(encoder)
        message = "texts of more than %d tokens, of which the rest is not read: %s of %s"
        log.warning(message, encoder.max_tokens, f"{cut:,}", f"{count:,}")


def encode_in_parts(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Encode many questions with a bar: float32 [n, dimension]."""
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    with progress("encoded", len(texts)) as show:
        for start in range(0, len(texts), _PART):
            some = texts[start : start + _PART]
            vectors[start : start + len(some)] = encoder.encode(some)
            show(start + len(some), "")
    return vectors


def parse_tensors(data: bytes, where: str) -> dict[str, np.ndarray]:
    """Parse a file of safetensors; UserError, with `where` it is, for anything else."""
    try:
        return dict(load(data))
    except (SafetensorError, KeyError) as error:  # a KeyError names a type such as BF16
        what = f"{where}: expected safetensors of a type that NumPy has, got {error}"
        raise UserError(what, remedy="fetch or export it again, in float32") from None


def read_facts(
    folder: StrPath, name: str, manifest: dict[str, Any], facts: Mapping[str, type]
) -> dict[str, Any]:
    """Read a verified JSON object; UserError unless entries have these types, numbers above 0.

    Args:
      folder: that of `manifest`.
      name: of the file.
      facts: the type of each entry.
    """
    found = parse_json(read_verified(folder, name, manifest), f"{folder}: {name}")
    values = found if isinstance(found, dict) else {}
    for fact, kind in facts.items():
        value = values.get(fact)
        if type(value) is not kind or (kind is int and value not in range(1, 2**31)):
            what = f"{folder}: {name}: expected `{fact}`, of type {kind.__name__}"
            raise UserError(what, remedy="export or fetch it again")
    return values


def serialize_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return the contents of a safetensors file."""
    return bytes(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))


def count_unknown(encoder: Encoder, texts: Sequence[str]) -> tuple[int, int]:
    """Count the plain words that the encoder lacks, and all plain words, in up to 1,000 texts.

    Both are 0 for an encoder that cannot tell. A text with one plain word of ASCII does not count:
    it may be a name or a term of any language.
    """
    words: list[str] = []
    for text in texts[:: max(1, -(-len(texts) // SAMPLE))]:
        found = plain_words(text[:_MOST_CHARACTERS])
        if len(found) > 1 or not "".join(found).isascii():
            words += found
    vocabulary = encoder.known_words(set(words))
    if vocabulary is None:
        return 0, 0
    return sum(word not in vocabulary for word in words), len(words)


def texts_in_other_words(encoder: Encoder, texts: Sequence[str]) -> list[str]:
    """Return those of up to 1,000 texts of which the encoder lacks most plain words."""
    some = texts[:: max(1, -(-len(texts) // SAMPLE))]
    words = [plain_words(text[:_MOST_CHARACTERS]) for text in some]
    vocabulary = encoder.known_words({*itertools.chain(*words)})
    return [
        text
        for text, found in zip(some, words, strict=True)
        if vocabulary is not None
        and len(found) >= _LEAST_WORDS
        and sum(word not in vocabulary for word in found) >= _LEAST_UNKNOWN * len(found)
    ]


def say_unknown_words(encoder: Encoder, texts: Sequence[str]) -> None:
    """Warn if the encoder lacks too many words of a table, or most words of some texts.

    Too many are 40 %, and two standard deviations more.
    """
    unknown, words = count_unknown(encoder, texts)
    deviations = math.sqrt(words)  # two: 2 sqrt(.4 * .6) is about 1
    if words and unknown >= _MOST_UNKNOWN * words + deviations:
        log.warning(
            "the encoder knows %.0f %% of the words of these texts, so it compares them by letters "
            'and common words, not by meaning; name one of their language, as `encoder="%s"`, or '
            "train one",
            100 - 100 * unknown / words,
            MULTILINGUAL,
        )
    elif len(others := texts_in_other_words(encoder, texts)) > _FEW:
        log.warning(
            "texts in another language, such as %r: %s of %s that were looked at; the encoder "
            'compares them by letters, not by meaning; `encoder="%s"` knows both',
            shortened(others[0], 60),
            f"{len(others):,}",
            f"{min(len(texts), SAMPLE):,}",
            MULTILINGUAL,
        )


def check_language(encoder: Encoder, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows, each with a `text`; warn as `say_unknown_words` of the first 1,000."""
    rows = iter(rows)
    first = [*itertools.islice(rows, SAMPLE)]
    say_unknown_words(encoder, [row.text for row in first])
    yield from itertools.chain(first, rows)


def encode_to_file(
    path: StrPath,
    questions: Iterable[Any],
    encode: Callable[[Sequence[Any]], np.ndarray],
    *,
    dimension: int,
    encoder: str,
    chunk: int = CHUNK,
) -> int:
    """Write the vectors of questions, float32 [n, dimension], to a .npy file, and return n.

    The next call with the same questions and encoder resumes what a kill left beside `path`, the
    rows so far, and their number and the hash of their questions; a UserError refuses others.

    encoder: the fingerprint of the encoder.
    """
    path = pathlib.Path(path).resolve()
    if path.suffix != ".npy":
        raise UserError(f"{path}: expected a name that ends in .npy", remedy="name another file")
    part, state, lock = (
        path.with_name(f".{path.name}.{end}") for end in ("part", "state.json", "lock")
    )
    stream, start = iter(questions), len(npy_header((0, dimension), "float32"))
    first = [*itertools.islice(stream, chunk)]  # unreadable questions fail before a file is made
    stream = itertools.chain(first, stream)
    # The file stays: without it two processes could hold the lock.
    with locked(lock, busy=f"{path}: another process is writing it"):
        written = read_object(state)
        rows, digest = written.get("rows", 0), hashlib.sha256(encoder.encode())
        if not part.exists() or part.stat().st_size < start + rows * 4 * dimension:
            rows = 0
        with name_in_errors(part), open(part, "r+b" if rows else "w+b") as file:
            for question in itertools.islice(stream, rows):
                digest.update(json.dumps(question).encode())
            if rows and digest.hexdigest() != written["sha256"]:
                what = f"{part}: was started with other questions or another encoder"
                raise UserError(what, remedy="remove the file to start again")
            if rows:
                log.info("%s: resuming after %s", path, counted(rows, "question"))
            file.truncate(start + rows * 4 * dimension)
            file.seek(0, os.SEEK_END)
            while some := [*itertools.islice(stream, chunk)]:
                file.write(np.ascontiguousarray(encode(some), np.float32).tobytes())
                sync(file)
                rows += len(some)
                for question in some:
                    digest.update(json.dumps(question).encode())
                write_json(state, {"rows": rows, "sha256": digest.hexdigest()})
            file.seek(0)
            file.write(npy_header((rows, dimension), "float32"))
            sync(file)
        os.replace(part, path)
        state.unlink(missing_ok=True)
    return rows


def npy_header(shape: tuple[int, int], kind: str) -> bytes:
    """Return how a .npy file of such numbers begins; its size does not depend on the rows."""
    file = io.BytesIO()
    facts = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, facts)
    return file.getvalue()


def sync(file: IO[bytes]) -> None:
    """Wait until what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())
