"""What a store of questions does: how it indexes their vectors, and what a search returns."""

from __future__ import annotations

import array
import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from qpr_jax.data.columns import Columns
from qpr_jax.data.entries import Id, Payload, check_id
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError, did_you_mean
from qpr_jax.files import StrPath
from qpr_jax.text.cleaning import Cleaner, as_texts

SaveEncoder = Callable[[StrPath], object]  # writes an encoder and its model of pairs to a folder
Entries = Iterable[tuple[int, Id | None, str, Payload | None]]  # line, id, question, payload

_LOOKED_AT = 5000  # ids in which one like an unknown one is sought
CLOSE = 0.2  # the least score of a hit that is shown as an answer
AUTO = "auto"
FLAT_BELOW = 20_000  # vectors that are compared with every query
FAMILIES = (
    "`auto`, `Flat`, `HNSW32`, or `IVF2000,` (or `IVF2000_HNSW32,`) before `Flat`, `SQ4`, `SQ6`, "
    "`SQ8`, `SQfp16`, `SQbf16`, `PQ50` or `PQ150x4fs`, with other numbers"
)
_MAX_LISTS = 1_000_000
_LINKS = range(2, 1025)  # FAISS aborts the process with 1 link
_FACTORY = re.compile(
    r"Flat|HNSW(?P<links>[1-9]\d*)"
    r"|IVF(?P<lists>[1-9]\d*)(?:_HNSW(?P<quantizer>[1-9]\d*))?,"
    r"(?P<codes>Flat|SQ4|SQ6|SQ8|SQfp16|SQbf16|PQ(?P<parts>[1-9]\d*)(?P<fast>x4fs)?)"
)


class Hit(NamedTuple):
    """An indexed question that a search found.

    distance: squared Euclidean, or the inner product times -1.
    score: how likely it means the same as the query, 0 to 1, by the two texts alone; None where the
      distance orders hits.
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


@dataclass(frozen=True)
class IndexConfig:
    """How vectors are indexed.

    Attributes:
      factory: the kind of index, as FAISS names it; "auto": `Flat` below 20,000 vectors, else
        lists of 4-bit codes.
      metric: "l2" (squared Euclidean distance) or "ip" (the inner product times -1).
      nprobe: lists that a search reads; of HNSW half the candidates that it keeps.
      vectors: "float32", or "float16" for half the disk.
      clean: whether HTML, and sentences that many texts share, are left out of what is encoded.
      text_columns: columns of the payload that are texts of a question, too: each text has a
        vector, and the nearest one counts in a search.
      question_column, id_column: the columns of the table, where it was built with their names.
    """

    factory: str = AUTO
    metric: str = "l2"
    nprobe: int = 64
    vectors: str = "float32"
    clean: bool = True
    text_columns: tuple[str, ...] = ()
    question_column: str = ""
    id_column: str = ""

    def __post_init__(self) -> None:
        columns = self.text_columns  # a list in JSON
        columns = (columns,) if isinstance(columns, str) else tuple(columns)
        object.__setattr__(self, "text_columns", columns)

    @property
    def columns(self) -> Columns:
        """The columns of a table that is added, where it has them."""
        return Columns(self.question_column, self.id_column, more=self.text_columns)

    def of_table(self, named: Columns) -> IndexConfig:
        """Remember the columns of a table that are asked for by name."""
        return dataclasses.replace(
            self,
            text_columns=named.more or self.text_columns,
            question_column=named.text or self.question_column,
            id_column=named.id or self.id_column,
        )

    @property
    def texts(self) -> int:
        """Number of vectors of a question."""
        return 1 + len(self.text_columns)


PAPER = IndexConfig("IVF2000,Flat", nprobe=10)  # Bonadiman, Kumar and Mittal (2019), section 4.3


def check_index_config(index_config: IndexConfig, dimension: int) -> None:
    """Raise a UserError unless vectors of this dimension can be indexed so."""
    if not isinstance(index_config, IndexConfig):
        raise UserError(f"`index_config`: expected a IndexConfig, got {index_config!r}")
    for name, choices in (("metric", ("l2", "ip")), ("vectors", ("float32", "float16"))):
        if (value := getattr(index_config, name)) not in choices:
            raise UserError(f"expected one of {', '.join(choices)}, got {value!r}", setting=name)
    if type(index_config.nprobe) is not int or not 1 <= index_config.nprobe <= _MAX_LISTS:
        what = f"expected a number from 1 to {_MAX_LISTS}, got {index_config.nprobe!r}"
        raise UserError(what, setting="nprobe")
    if index_config.factory == AUTO:
        return
    parts = parse_factory(index_config.factory)
    if int(parts["lists"] or 0) > _MAX_LISTS:
        raise UserError(f"expected at most {_MAX_LISTS:,} lists", setting="factory")
    for name in ("links", "quantizer"):
        if parts[name] and int(parts[name]) not in _LINKS:
            what = f"expected HNSW{_LINKS[0]} to HNSW{_LINKS[-1]}, got HNSW{parts[name]}"
            raise UserError(what, setting="factory")
    if int(parts["parts"] or 0) > dimension:
        what = f"expected at most {dimension} parts, one a dimension, got PQ{parts['parts']}"
        raise UserError(what, setting="factory")


def check_text_columns(index_config: IndexConfig, columns: Sequence[str]) -> None:
    """Raise a UserError if columns of texts are named that are not those of the index."""
    present = index_config.text_columns
    if columns and tuple(columns) != present:
        texts = " and ".join(["the question", *(f"`{name}`" for name in present)])
        what = f"the index has texts of {texts}, expected no others, got {', '.join(columns)}"
        remedy = "name its columns, or build the index again with these"
        raise UserError(what, setting="text_column", remedy=remedy)


def parse_factory(factory: str) -> dict[str, Any]:
    """Return the parts of a factory string; UserError if it is of no known family."""
    match = _FACTORY.fullmatch(factory) if isinstance(factory, str) else None
    if match is None:
        raise UserError(f"expected {FAMILIES}; got {factory!r}", setting="factory")
    return match.groupdict()


def padded_dimension(factory: str, dimension: int) -> int:
    """Return the dimension of the index of FAISS; vectors are padded to it with zeros.

    The parts of a product code are equally long, and scalar codes are fast 16 at a time.
    """
    parts = parse_factory(factory)
    size = int(parts["parts"] or 1)
    if (parts["codes"] or "").startswith("SQ"):
        size = 16
    return -(-dimension // size) * size
