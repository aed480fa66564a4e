"""Labeled pairs of questions: Quora's pair file, any table with its columns, and verdicts."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import pathlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from qpr_jax.data.columns import Fields, is_missing
from qpr_jax.data.decoding import BadRows, input_name
from qpr_jax.data.tables import format_of, read_rows
from qpr_jax.errors import UserError, short
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, id_key

log = logging.getLogger("qpr_jax")

COLUMNS = ("question1", "question2", "is_duplicate")
IDS = ("qid1", "qid2")
PAIRS_HEADER = (*IDS, *COLUMNS)  # of the pair files that `qpr splits` writes
HEADER = ("id", *PAIRS_HEADER)  # of Quora's file
WEIGHT = "weight"
_LABELS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}
_SKIP = "skip bad rows with `--skip-bad-rows`, or `--set data.skip_bad_rows=True` in a training"

Row = tuple[Id, Id, str, str, bool]  # qid1, qid2, question1, question2, is_duplicate


@dataclass(frozen=True)
class QuestionPairs:
    """Q distinct questions, in order of first appearance, and their labeled pairs.

    Attributes:
      ids: int64 [Q].
      pairs, is_duplicate: int32 [P, 2], positions of two questions, and bool [P].
      report: counts: `rows` (good ones), `skipped_rows` (bad ones), `same_text_ids` (ids left out,
        since an earlier id has their text), `changed_texts` (ids with several texts, of which the
        first that is not blank is kept), `self_pairs` (rows that pair a question with itself).
    """

    questions: list[str]
    ids: np.ndarray
    pairs: np.ndarray
    is_duplicate: np.ndarray
    report: dict[str, Any]

    @classmethod
    def of_duplicates(cls, questions: list[str], pairs: np.ndarray, **report: Any) -> Self:
        """Questions without ids of their own, and pairs int32 [P, 2] that are all duplicates."""
        ids, report = np.arange(len(questions)), {"skipped_rows": 0} | report
        return cls(questions, ids, pairs, np.ones(len(pairs), np.bool_), report)

    def subset(self, kept: np.ndarray) -> QuestionPairs:
        """The questions that are `kept`, bool [Q], and the pairs of two of them."""
        rows = kept[self.pairs].all(axis=1)
        texts = [*itertools.compress(self.questions, kept)]
        pairs = (np.cumsum(kept, dtype=np.int32) - 1)[self.pairs[rows]]
        return QuestionPairs(texts, self.ids[kept], pairs, self.is_duplicate[rows], self.report)


class Verdicts(NamedTuple):
    """Verdicts on found pairs int64 [P, 2] of distinct questions, and weights float64 [P].

    A weight is how many found pairs a verdict stands for, 1 by default.
    """

    questions: list[str]
    pairs: np.ndarray
    is_duplicate: np.ndarray
    weights: np.ndarray


def read_question_pairs(
    path: StrPath, *, format: str = "", skip_bad_rows: bool = False, max_rows: int = 0
) -> QuestionPairs:
    """Read a file with the columns question1, question2 and is_duplicate, such as Quora's, or "-".

    A question's id is the one in `qid1` or `qid2`, if the file has these columns and they hold
    whole numbers; else questions are numbered by first appearance. The first bad row is a UserError
    with its line, unless they are skipped and counted.

    format: of `data.tables`; if empty, the suffix of the file's name decides, else "tsv".
    max_rows: stop after so many good rows; 0: read all.
    """
    name, kind = input_name(str(path)), format or format_of(path) or "tsv"
    bad = BadRows(f"{name}, line", skip=skip_bad_rows, option=_SKIP)
    data = gather_pairs(map(_with_ids, _read(str(path), IDS, kind, bad, max_rows)), name)
    data.report["skipped_rows"] = bad.count
    return data


def read_verdicts(path: str, *, format: str = "") -> Verdicts:
    """Read labeled pairs, maybe with a `weight`; a UserError names the line of a bad row."""
    bad = BadRows(f"{input_name(path)}, line", skip=False, option=_SKIP)
    rows = _read(path, (WEIGHT,), format, bad)
    weights = np.ones(len(rows))
    positions: dict[str, int] = {}
    pairs = np.empty((len(rows), 2), np.int64)
    for i, (line, texts, _, fields) in enumerate(rows):
        pairs[i] = [positions.setdefault(text, len(positions)) for text in texts]
        cell = fields.get(WEIGHT)
        with contextlib.suppress(ValueError):
            weights[i] = 1 if _is_blank(cell) else float(str(cell))
            if 0 < weights[i] < math.inf:
                continue
        bad.add(line, f"expected a `{WEIGHT}` above 0, got {short(cell)}")
    labels = np.array([row.label for row in rows], np.bool_)
    return Verdicts([*positions], pairs, labels, weights)


class _PairRow(NamedTuple):
    """A labeled pair: its line, both texts, the label, and all fields that were read."""

    line: int
    texts: tuple[str, str]
    label: bool
    fields: Fields


def _read(
    path: str, columns: Sequence[str], format: str, bad: BadRows, most: int = 0
) -> list[_PairRow]:
    """Read `most` good rows (0: all) with COLUMNS and those of `columns` that are there."""
    name = input_name(path)

    def choose(names: Sequence[str]) -> list[str]:
        if not {*COLUMNS} <= {*names}:
            what = f"{name}: expected the columns {', '.join(COLUMNS)}, got {short([*names])}"
            raise UserError(what, remedy="name its columns so, or another format with `--format`")
        return [*COLUMNS, *(column for column in columns if column in names)]

    parsed = ((line, _parse(line, row)) for line, row in read_rows(path, choose, format=format))
    rows = [*itertools.islice(bad.good(parsed), most or None)]
    bad.warn()
    if not rows:
        what = f"{name}: expected rows of question pairs, got no good row and {bad.count} bad ones"
        raise UserError(what, remedy="give a file with pairs")
    return rows


def pair_columns(path: str, *, format: str = "") -> list[str]:
    """Return the columns of a file of labeled pairs without its rows; [] for any other input."""
    found: list[str] = []

    def choose(names: Sequence[str]) -> Sequence[str]:
        found.extend(names)
        return names

    if pathlib.Path(path).is_file():  # a pipe can be read only once
        with contextlib.suppress(UserError):
            kind = format or format_of(path) or "tsv"
            _, fields = next(read_rows(path, choose, format=kind), (0, ""))
            found = found if isinstance(fields, str) else [*fields]
    return found if {*COLUMNS} <= {*found} else []


def parse_label(cell: object) -> bool | None:
    """Parse a label, 0 or 1, true or false; None for anything else."""
    return _LABELS.get(str(cell).strip().lower())


def _parse(line: int, fields: Fields | str) -> _PairRow | str:
    """A labeled pair, or what is wrong with the row."""
    if isinstance(fields, str):
        return fields
    if missing := [name for name in COLUMNS if name not in fields]:
        return f"expected `{missing[0]}`, got {short(sorted(fields))}"
    first, second, cell = ("" if is_missing(fields[name]) else fields[name] for name in COLUMNS)
    for name, text in zip(COLUMNS, (first, second), strict=False):
        if not isinstance(text, str):
            return f"expected a question in `{name}`, got {short(text)}"
    label = parse_label(cell)
    if label is None:
        return f"expected `{COLUMNS[2]}` 0 or 1, got {short(cell)}"
    return _PairRow(line, (str(first), str(second)), label, fields)


def _is_blank(cell: object) -> bool:
    return is_missing(cell) or not str(cell).strip()


def _with_ids(row: _PairRow) -> Row:
    """A row with the ids of both questions; "=" and the text for one without an id."""
    both = {*IDS} <= row.fields.keys()
    cells = [row.fields.get(name) if both else None for name in IDS]
    found = zip(row.texts, cells, strict=True)
    a, b = (f"={text}" if _is_blank(cell) else id_key(str(cell)) for text, cell in found)
    return a, b, *row.texts, row.label


def gather_pairs(rows: Iterable[Row], source: str = "") -> QuestionPairs:
    """Number the questions of `rows` by first appearance; equal texts are one question.

    Their ids are those of the rows, if all are whole numbers. Else they are numbered, too, and a
    warning names the source unless no row has an id.
    """
    rows = list(rows)
    text_of: dict[Id, str] = {}
    changed: set[Id] = set()
    for id1, id2, text1, text2, _ in rows:
        for identity, text in ((id1, text1), (id2, text2)):
            known = text_of.setdefault(identity, text)
            if known != text:
                changed.add(identity)
                if not known.strip():
                    text_of[identity] = text
    questions: dict[str, int] = {}
    ids: list[Id] = []
    position: dict[Id, int] = {}
    whole = all(isinstance(identity, int) for identity in text_of)
    if not whole and any(not str(identity).startswith("=") for identity in text_of):
        text = "%s: not all ids are whole numbers; questions are numbered from 0 instead"
        log.warning(text, source)
    for number, (identity, text) in enumerate(text_of.items()):
        at = position[identity] = questions.setdefault(text, len(questions))
        if at == len(ids):
            ids.append(identity if whole else number)
    pairs = np.array([(position[a], position[b]) for a, b, *_ in rows], np.int32).reshape(-1, 2)
    kept = pairs[:, 0] != pairs[:, 1]
    report = {
        "rows": len(rows),
        "skipped_rows": 0,
        "same_text_ids": len(position) - len(ids),
        "changed_texts": len(changed),
        "self_pairs": int((~kept).sum()),
    }
    labels = np.array([row[-1] for row in rows], np.bool_)
    return QuestionPairs([*questions], np.array(ids, np.int64), pairs[kept], labels[kept], report)
