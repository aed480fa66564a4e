"""Labeled pairs of questions for training, of a file in any format of `data.tables`."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Sequence

from qpr_jax.data.columns import is_missing
from qpr_jax.data.quora import (
    QuestionPairs,
    Row,
    collect_rows,
    gather_pairs,
    is_quora_file,
    read_quora,
)
from qpr_jax.data.quoted_tsv import short
from qpr_jax.data.tables import Choose, Fields, input_name, read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.ids import Id, cell_id

log = logging.getLogger("qpr_jax")

COLUMNS = ("question1", "question2", "is_duplicate")
IDS = ("qid1", "qid2")
_LABELS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}
_REMEDY = "name its columns so, or another format with `--format`"


def parse_label(cell: object) -> bool | None:
    """The label that a cell says: 0 or 1, true or false; None for anything else."""
    return _LABELS.get(str(cell).strip().lower())


def read_question_pairs(
    path: StrPath, *, format: str = "", skip_bad_rows: bool = False, max_rows: int = 0
) -> QuestionPairs:
    """Read a file with the columns question1, question2 and is_duplicate, or Quora's pair file.

    A question's id is the one in `qid1` or `qid2`, if the file has these columns and they hold
    whole numbers; else questions are numbered by first appearance. Other arguments and errors as of
    `read_quora`, and of `data.tables.read_rows`.
    """
    source = str(path)
    if not format and is_quora_file(path):
        return read_quora(path, skip_bad_rows=skip_bad_rows, max_rows=max_rows)
    name = input_name(source)
    parsed = (
        (line, fields if isinstance(fields, str) else _parse(fields))
        for line, fields in read_rows(source, _choose(name), format=format)
    )
    rows, skipped = collect_rows(parsed, name, skip_bad_rows=skip_bad_rows, max_rows=max_rows)
    if not rows:
        got = f"got no good row and {skipped} bad ones"
        what = f"{name}: expected rows of question pairs, {got}"
        raise UserError(what, remedy="give a file with pairs")
    data = gather_pairs(_numbered(rows, name))
    data.report["skipped_rows"] = skipped
    return data


def pair_columns(path: str, *, format: str = "") -> list[str]:
    """The columns of a file of labeled pairs, without its rows; empty for any other input."""
    found: list[str] = []

    def choose(names: Sequence[str]) -> Sequence[str]:
        found.extend(names)
        return names

    if pathlib.Path(path).is_file():  # a pipe can be read only once
        with contextlib.suppress(UserError):
            _, fields = next(read_rows(path, choose, format=format), (0, ""))
            found = found if isinstance(fields, str) else [*fields]
    return found if {*COLUMNS} <= {*found} else []


def _choose(source: str) -> Choose:
    """Read the columns of pairs, and those of their ids, if they are there."""

    def choose(names: Sequence[str]) -> list[str]:
        for name in COLUMNS:
            if name not in names:
                what = f"expected the columns {', '.join(COLUMNS)}, got {short([*names])}"
                raise UserError(f"{source}: {what}", remedy=_REMEDY)
        return [*COLUMNS, *(IDS if {*IDS} <= {*names} else ())]

    return choose


def _parse(fields: Fields) -> tuple[Id, Id, str, str, bool] | str:
    """Ids, texts and label of a row, or what is wrong with it."""
    missing = [name for name in COLUMNS if name not in fields]
    if missing:
        return f"expected `{missing[0]}`, got {short(sorted(fields))}"
    texts: list[str] = []
    ids: list[Id] = []
    for name, key in zip(COLUMNS, IDS, strict=False):
        text = "" if is_missing(fields[name]) else fields[name]
        if not isinstance(text, str):
            return f"expected a question in `{name}`, got {short(text)}"
        value = fields.get(key)
        texts.append(text)
        if is_missing(value) or not str(value).strip():  # questions then differ by their text
            ids.append("=" + text)
        else:
            ids.append(value if type(value) is int else cell_id(f"{value}") or "")
    label = parse_label(fields[COLUMNS[2]])
    if label is None:
        return f"expected `{COLUMNS[2]}` 0 or 1, got {short(fields[COLUMNS[2]])}"
    return ids[0], ids[1], texts[0], texts[1], label


def _numbered(rows: list[tuple[Id, Id, str, str, bool]], source: str) -> list[Row]:
    """The rows with whole numbers as ids: their own if all are, else by first appearance."""
    ids = dict.fromkeys(value for row in rows for value in row[:2])
    known: dict[Id, int] = {value: value for value in ids if isinstance(value, int)}
    number = known
    if len(known) < len(ids):
        number = {value: i for i, value in enumerate(ids)}
        if any(not str(value).startswith("=") for value in ids):
            text = "%s: not all ids are whole numbers; questions are numbered from 0 instead"
            log.warning(text, source)
    return [(number[a], number[b], first, second, label) for a, b, first, second, label in rows]
