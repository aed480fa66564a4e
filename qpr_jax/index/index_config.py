"""How vectors are indexed: the `IndexConfig`, checked, and fitted to a number of vectors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qpr_jax.data.columns import Columns
from qpr_jax.errors import UserError

AUTO = "auto"
FLAT_BELOW = 20_000  # vectors that are compared with every query
FAMILIES = (
    "`auto`, `Flat`, `HNSW32`, or `IVF2000,` (or `IVF2000_HNSW32,`) before `Flat`, `SQ4`, `SQ6`, "
    "`SQ8`, `SQfp16`, `SQbf16`, `PQ50` or `PQ150x4fs`, with other numbers"
)
_MAX_LISTS = 1_000_000
_LINKS = range(2, 1025)  # FAISS aborts the process with 1 link
_MIN_POINTS = 39  # training vectors a centroid; FAISS warns below
_FACTORY = re.compile(
    r"Flat|HNSW(?P<links>[1-9]\d*)"
    r"|IVF(?P<lists>[1-9]\d*)(?:_HNSW(?P<quantizer>[1-9]\d*))?,"
    r"(?P<codes>Flat|SQ4|SQ6|SQ8|SQfp16|SQbf16|PQ(?P<parts>[1-9]\d*)(?P<fast>x4fs)?)"
)


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
    for name, known in (("metric", ("l2", "ip")), ("vectors", ("float32", "float16"))):
        if (value := getattr(index_config, name)) not in known:
            raise UserError(f"expected one of {', '.join(known)}, got {value!r}", setting=name)
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


def fit_index_config(index_config: IndexConfig, count: int, dimension: int) -> str:
    """Return the factory of FAISS for `count` vectors.

    It has at most count // 39 lists, and is `Flat` if there are too few vectors to train it.
    """
    factory = index_config.factory
    if factory == AUTO:
        if count < FLAT_BELOW:
            return "Flat"
        factory = f"IVF{int(2.5 * count**0.5)},PQ{(dimension + 1) // 2}x4fs"
    parts = parse_factory(factory)
    if not parts["lists"]:
        return factory
    lists, codes = min(int(parts["lists"]), count // _MIN_POINTS), parts["codes"]
    if codes.startswith("PQ") and count < (16 if parts["fast"] else 256) * _MIN_POINTS:
        codes = "Flat"
    head = factory.partition(",")[0].replace(f"IVF{parts['lists']}", f"IVF{lists}")
    return f"{head},{codes}" if lists > 1 else "Flat"


def padded_dimension(factory: str, dimension: int) -> int:
    """Return the dimension of the index of FAISS; vectors are padded to it with zeros.

    The parts of a product code are equally long, and scalar codes are fast 16 at a time.
    """
    parts = parse_factory(factory)
    size = int(parts["parts"] or 1)
    if (parts["codes"] or "").startswith("SQ"):
        size = 16
    return -(-dimension // size) * size
