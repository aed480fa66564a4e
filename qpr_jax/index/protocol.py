"""What a store of questions does, and what a search returns."""

from __future__ import annotations

import array
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from qpr_jax.data.entries import Payload
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError, did_you_mean
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, check_id
from qpr_jax.index.index_config import IndexConfig
from qpr_jax.text.cleaning import Cleaner, as_texts

SaveEncoder = Callable[[StrPath], object]  # writes an encoder and its model of pairs to a folder
Entries = Iterable[tuple[int, Id | None, str, Payload | None]]  # line, id, question, payload

_LOOKED_AT = 5000  # ids in which one like an unknown one is sought
CLOSE = 0.3  # the least score of a hit that is shown as an answer


class Hit(NamedTuple):
    """An indexed question that a search found.

    distance: squared Euclidean, or the inner product times -1.
    score: how likely it means the same as the query, 0 to 1, by the two texts alone; None without a
      model of pairs.
    payload: what was stored with the question, or None.
    column: the column of the payload whose text matched; None: the question did.
    """

    id: Id
    question: str
    distance: float
    score: float | None = None
    payload: Payload | None = None
    column: str | None = None

    @property
    def close(self) -> bool | None:
        """Whether its score is at least CLOSE; None if it has none."""
        return None if self.score is None else self.score >= CLOSE


class Question(NamedTuple):
    """A question to index, or as a store holds it."""

    id: Id
    text: str
    payload: Payload | None = None

    def text_in(self, column: str) -> str | None:
        """Return the text in a column of the payload; None if it is blank or missing."""
        text = (self.payload or {}).get(column)
        return text if isinstance(text, str) and text.strip() else None

    def texts(self, columns: Iterable[str]) -> list[str]:
        """Return its text and those in columns of the payload; its text for a missing one."""
        return [self.text, *(self.text_in(column) or self.text for column in columns)]


class Store(Protocol):
    """Questions and their vectors; safe to use from several threads."""

    # Fields of an `IndexConfig` that the settings of an encoder do not decide here.
    defaults: ClassVar[Mapping[str, Any]]
    index_config: IndexConfig  # how the vectors are indexed
    encoder: str  # fingerprint of the encoder of the vectors
    dimension: int  # length of a vector
    cleaner: Cleaner  # of the texts before they are encoded

    @classmethod
    def open(cls, location: str) -> Self:
        """Open the store at a location; UserError if there is none."""

    @classmethod
    def build(
        cls,
        location: str,
        questions: Iterable[Question],
        encoder: Encoder,
        index_config: IndexConfig,
        encoder_name: str,
        save_encoder: SaveEncoder,
    ) -> Self:
        """Index questions at a location, in place of what is there.

        Until all are there, and after a failure, other processes find what was there before.

        Args:
          location: of the store; "": nowhere, so that it ends with the process.
          questions: UserError, or `RepeatedIdError`, if two have one id.
          encoder: encodes the questions.
          index_config: how to index them.
          encoder_name: what the encoder was read from; "": made in Python.
          save_encoder: for a store that keeps the encoder itself.
        """

    def require(self, encoder: str) -> None:
        """UserError unless the encoder of the vectors has this fingerprint, now and later."""

    @property
    def location(self) -> str:
        """From where another process opens it: a folder or an address; "": nowhere."""

    @property
    def encoder_name(self) -> str:
        """From where another process reads the encoder; "": nowhere."""

    @property
    def version(self) -> str:
        """Name of the present state; every change gives another one."""

    def __len__(self) -> int:
        """Return the number of questions."""

    def search(self, vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """Find the `k` nearest questions of each vector float32 [n, d], nearest first.

        With several texts (`IndexConfig.text_columns`) the nearest one is that of the question.
        """

    def add(self, questions: Sequence[Question], vectors: np.ndarray) -> None:
        """Store questions of distinct ids and their vectors float32 [n, d]; replace equal ids.

        The change is durable when the call returns. A question of t texts has t vectors, [n t, d].
        """

    def remove(self, ids: Sequence[Id]) -> int:
        """Remove questions and return how many there were; unknown ids change nothing."""

    def get(self, ids: Sequence[Id]) -> list[Question | None]:
        """Return the question of each id, None for an unknown one."""

    def questions(self) -> Iterator[Question]:
        """Yield all questions, in the order in which they were added."""

    def blocks(self) -> Iterator[tuple[list[Question], np.ndarray]]:
        """Yield the questions with the vectors float32 [m, d] of their first texts, in parts."""

    def new_ids(self, count: int) -> list[Id]:
        """Return ids that no question has or had."""

    def compact(self) -> None:
        """Build the index again without what was removed; a server does so by itself."""

    def facts(self) -> dict[str, Any]:
        """Return what `qpr info` says of the store; UserError if a file is damaged."""

    def changing(self) -> AbstractContextManager[None]:
        """Hold off the changes of other threads and processes; the holder may change."""


def similar_id(store: Store, value: object) -> str:
    """Return what `did_you_mean` says of an unknown id and the first ids of a store."""
    some = itertools.islice(store.questions(), _LOOKED_AT)
    return did_you_mean(f"{value}", (f"{question.id}" for question in some))


def check_encoder(where: StrPath, found: str, expected: str) -> None:
    """Raise a UserError unless an index is of the encoder of this fingerprint; "": any."""
    if expected and found != expected:
        what = f"expected an index of the encoder {expected[:12]}, got one of {found[:12]}"
        remedy = "load the index again, or build it with this encoder"
        raise UserError(f"{where}: {what}", remedy=remedy)


def as_questions(
    entries: Entries, lines: array.array[int], place: Callable[[int, int], str]
) -> Iterator[Question]:
    """Check entries and append their lines to `lines`; all have an id, or none: then 0, 1, 2, ...

    UserError if there are none.
    place: the file and the line of a row in a message, from its number and its line.
    """
    with_ids = False
    for number, (line, value, question, *rest) in enumerate(entries):
        with_ids = with_ids if number else value is not None
        if with_ids != (value is not None):
            kind = "an" if with_ids else "no"
            what = f"{place(number, line)}: expected {kind} id, as in the rows before"
            remedy = 'give one to every question, or read none with `id_column=""`'
            raise UserError(what, remedy=remedy)
        lines.append(line)
        try:
            id = number if value is None else check_id(value, "")
            (text,) = as_texts([question])
        except UserError as error:
            raise UserError(f"{place(number, line)}: {error.what}", remedy=error.remedy) from None
        yield Question(id, text, rest[0] if rest else None)
    if not lines:
        source = place(0, 0).rpartition(",")[0]
        raise UserError(f"{source}: expected questions, got none")


def texts_of(questions: Iterable[Question], index_config: IndexConfig) -> list[str]:
    """Return the texts of questions that have vectors, those of a question side by side."""
    columns = index_config.text_columns
    return [text for question in questions for text in question.texts(columns)]


def cleaner_of(questions: Iterable[Question], index_config: IndexConfig) -> Cleaner:
    """Return the cleaner of questions; a text that stands often in another column counts once."""
    texts, others = list[str](), dict[str, None]()
    for question in questions if index_config.clean else ():
        text, *more = question.texts(index_config.text_columns)
        texts.append(text)
        others.update(dict.fromkeys(more))
    for text in {*texts} if others else ():
        others.pop(text, None)
    return Cleaner.of([*texts, *others]) if index_config.clean else Cleaner()


class DamagedError(UserError):
    """A file of an index is missing or damaged."""


def damaged(path: pathlib.Path, reason: str) -> DamagedError:
    """Return the error of a damaged file."""
    return DamagedError(f"{path}: {reason}", remedy="restore the file, or build the index again")
