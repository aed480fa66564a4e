"""Labeled pairs of questions: Quora's pair file, any table with its columns, and verdicts."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from qpr_jax.data.columns import Fields, is_missing
from qpr_jax.data.decoding import BadRows, input_name, short
from qpr_jax.data.tables import format_of, read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, cell_id

log = logging.getLogger("qpr_jax")

COLUMNS = ("question1", "question2", "is_duplicate")
IDS = ("qid1", "qid2")
PAIRS_HEADER = (*IDS, *COLUMNS)  # of the pair files that `qpr splits` writes
HEADER = ("id", *PAIRS_HEADER)  # of Quora's file
SCORE, WEIGHT, CALIBRATION = "score", "weight", "calibration"
_LABELS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}
_SKIP = "skip bad rows with `--skip-bad-rows`"

T = TypeVar("T")
Row = tuple[int, int, str, str, bool]  # qid1, qid2, question1, question2, is_duplicate


@dataclass(frozen=True)
class QuestionPairs:
    """Distinct questions, in order of first appearance, and their labeled pairs.

    Attributes:
      questions: Q texts.
      ids: int64 [Q].
      pairs: int32 [P, 2], positions of questions, for each good row that pairs two questions.
      is_duplicate: bool [P].
      report: counts: `rows` (good ones), `skipped_rows` (bad ones), `same_text_ids` (ids left out,
        since an earlier id has their text), `changed_texts` (ids with several texts, of which the
        first that is not blank is kept), `self_pairs` (rows that pair a question with itself).
    """

    questions: list[str]
    ids: np.ndarray
    pairs: np.ndarray
    is_duplicate: np.ndarray
    report: dict[str, int]


class LabeledPairs(NamedTuple):
    """Distinct questions and labeled pairs of them.

    Attributes:
      questions: Q texts.
      pairs: int [P, 2], positions of questions.
      is_duplicate: bool [P].
    """

    questions: list[str]
    pairs: np.ndarray
    is_duplicate: np.ndarray


class Verdicts(NamedTuple):
    """Verdicts on pairs that were found: labeled pairs with the scores by which they were found.

    Attributes:
      labeled: P pairs with their labels.
      scores: float64 [P], probabilities; None if a pair has none.
      weights: float64 [P], how many found pairs each verdict stands for; 1 by default.
      scored_by: name of the calibration of the scores; "" if unknown.
    """

    labeled: LabeledPairs
    scores: np.ndarray | None
    weights: np.ndarray
    scored_by: str = ""


def read_question_pairs(
    path: StrPath, *, format: str = "", skip_bad_rows: bool = False, max_rows: int = 0
) -> QuestionPairs:
    """Read a file with the columns question1, question2 and is_duplicate, such as Quora's.

    A question's id is the one in `qid1` or `qid2`, if the file has these columns and they hold
    whole numbers; else questions are numbered by first appearance.

    Args:
      path: of a file in a format of `data.tables`, or "-".
      format: if empty, the suffix of the file's name decides, else "tsv".
      skip_bad_rows: count bad rows and leave them out; else the first is a UserError with its line.
      max_rows: stop after so many good rows; 0: read all.
    """
    if max_rows < 0:
        raise UserError(f"expected 0 (all) or more, got {max_rows}", setting="max_rows")
    kind = _format(path, format)
    rows, skipped = _read(str(path), IDS, _parse, kind, skip=skip_bad_rows, most=max_rows)
    data = gather_pairs(_numbered(rows, input_name(str(path))))
    data.report["skipped_rows"] = skipped
    return data


def read_labeled(path: str, *, format: str = "") -> LabeledPairs:
    """Read the questions and labels of a file of pairs; see `read_question_pairs`."""
    data = read_question_pairs(path, format=format)
    return LabeledPairs(data.questions, data.pairs.astype(np.int64), data.is_duplicate)


def read_verdicts(path: str, *, format: str = "") -> Verdicts:
    """Read a file with the columns of labeled pairs, maybe `score`, `weight` and `calibration`.

    A UserError names the line of a row that cannot be read.
    """
    parsed, _ = _read(path, (SCORE, WEIGHT, CALIBRATION), _parse_verdict, format)
    first, second, label, score, weight, calibration = zip(*parsed, strict=True)
    if len({*calibration}) > 1:
        what = f"expected scores of one `{CALIBRATION}`, got {short(sorted({*calibration}))}"
        raise UserError(f"{input_name(path)}: {what}", remedy="keep the verdicts of one review")
    positions: dict[str, int] = {}
    for text in itertools.chain.from_iterable(zip(first, second, strict=True)):
        positions.setdefault(text, len(positions))
    pairs = np.array([[positions[a], positions[b]] for a, b in zip(first, second, strict=True)])
    labeled = LabeledPairs([*positions], pairs, np.array(label, np.bool_))
    scores = None if any(map(math.isnan, score)) else np.array(score)
    return Verdicts(labeled, scores, np.array(weight), calibration[0])


def _read(
    path: str,
    columns: Sequence[str],
    parse: Callable[[Fields], T | str],
    format: str,
    *,
    skip: bool = False,
    most: int = 0,
) -> tuple[list[T], int]:
    """Parse rows with COLUMNS and, where they are there, other columns; count the bad rows."""
    name = input_name(path)

    def choose(names: Sequence[str]) -> list[str]:
        if not {*COLUMNS} <= {*names}:
            what = f"{name}: expected the columns {', '.join(COLUMNS)}, got {short([*names])}"
            raise UserError(what, remedy="name its columns so, or another format with `--format`")
        return [*COLUMNS, *(column for column in columns if column in names)]

    bad = BadRows(f"{name}, line", skip=skip, option=_SKIP)
    parsed = (
        (line, fields if isinstance(fields, str) else parse(fields))
        for line, fields in read_rows(path, choose, format=format)
    )
    rows = [*itertools.islice(bad.good(parsed), most or None)]
    bad.warn()
    if not rows:
        what = f"{name}: expected rows of question pairs, got no good row and {bad.count} bad ones"
        raise UserError(what, remedy="give a file with pairs")
    return rows, bad.count


def pair_columns(path: str, *, format: str = "") -> list[str]:
    """Return the columns of a file of labeled pairs without its rows; [] for any other input."""
    found: list[str] = []

    def choose(names: Sequence[str]) -> Sequence[str]:
        found.extend(names)
        return names

    if pathlib.Path(path).is_file():  # a pipe can be read only once
        with contextlib.suppress(UserError):
            _, fields = next(read_rows(path, choose, format=_format(path, format)), (0, ""))
            found = found if isinstance(fields, str) else [*fields]
    return found if {*COLUMNS} <= {*found} else []


def parse_label(cell: object) -> bool | None:
    """Parse a label, 0 or 1, true or false; None for anything else."""
    return _LABELS.get(str(cell).strip().lower())


def _format(path: StrPath, format: str) -> str:
    return format or format_of(path) or "tsv"


def _parse_texts(fields: Fields) -> tuple[str, str, bool] | str:
    """The texts and the label of a row, or what is wrong with it."""
    for name in COLUMNS:
        if name not in fields:
            return f"expected `{name}`, got {short(sorted(fields))}"
    first, second, cell = ("" if is_missing(fields[name]) else fields[name] for name in COLUMNS)
    for name, text in zip(COLUMNS, (first, second), strict=False):
        if not isinstance(text, str):
            return f"expected a question in `{name}`, got {short(text)}"
    label = parse_label(cell)
    if label is None:
        return f"expected `{COLUMNS[2]}` 0 or 1, got {short(cell)}"
    return str(first), str(second), label


def _parse(fields: Fields) -> tuple[Id, Id, str, str, bool] | str:
    """Ids, texts and label of a row, or what is wrong with it."""
    parsed = _parse_texts(fields)
    if isinstance(parsed, str):
        return parsed
    ids: list[Id] = []
    both = {*IDS} <= fields.keys()
    for key, text in zip(IDS, parsed[:2], strict=True):
        value = fields[key] if both else None
        if is_missing(value) or not str(value).strip():  # questions then differ by their text
            ids.append("=" + text)
        else:
            known = value if type(value) is int else cell_id(f"{value}")
            ids.append("" if known is None else known)
    return ids[0], ids[1], *parsed


def _parse_verdict(fields: Fields) -> tuple[str, str, bool, float, float, str] | str:
    """Texts, label, score (NaN for none), weight and calibration, or what is wrong."""
    texts = _parse_texts(fields)
    if isinstance(texts, str):
        return texts
    score = _number(fields.get(SCORE), math.nan)
    if score is None or not (math.isnan(score) or 0 <= score <= 1):
        return f"expected `{SCORE}`, a probability, got {short(fields.get(SCORE))}"
    weight = _number(fields.get(WEIGHT), 1.0)
    if weight is None or not 0 < weight < math.inf:
        return f"expected `{WEIGHT}`, a number above 0, got {short(fields.get(WEIGHT))}"
    cell = fields.get(CALIBRATION)
    return *texts, score, weight, "" if is_missing(cell) else str(cell)


def _number(cell: object, default: float) -> float | None:
    """Parse the number of a cell; the default for a missing one, None for anything else."""
    if is_missing(cell) or not str(cell).strip():
        return default
    try:
        return float(str(cell))
    except ValueError:
        return None


def _numbered(rows: list[tuple[Id, Id, str, str, bool]], source: str) -> list[Row]:
    """The rows with whole numbers as ids: their own if all are, else by first appearance."""
    ids = dict.fromkeys(value for row in rows for value in row[:2])
    number: dict[Id, int] = {value: value for value in ids if isinstance(value, int)}
    if len(number) < len(ids):
        number = {value: i for i, value in enumerate(ids)}
        if any(not str(value).startswith("=") for value in ids):
            text = "%s: not all ids are whole numbers; questions are numbered from 0 instead"
            log.warning(text, source)
    return [(number[a], number[b], first, second, label) for a, b, first, second, label in rows]


def gather_pairs(rows: Iterable[Row]) -> QuestionPairs:
    """Number the questions of `rows` by first appearance; equal texts are one question."""
    rows = list(rows)
    text_of: dict[int, str] = {}
    changed: set[int] = set()
    for id1, id2, text1, text2, _ in rows:
        for identity, text in ((id1, text1), (id2, text2)):
            known = text_of.setdefault(identity, text)
            if known != text:
                changed.add(identity)
                if not known.strip():
                    text_of[identity] = text
    questions: dict[str, int] = {}
    ids: list[int] = []
    position: dict[int, int] = {}
    for identity, text in text_of.items():
        at = position[identity] = questions.setdefault(text, len(questions))
        if at == len(ids):
            ids.append(identity)
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
