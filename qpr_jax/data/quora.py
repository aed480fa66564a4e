"""The pair file: tab-separated, quoted as CSV, one labelled pair of questions a row."""

from __future__ import annotations

import pathlib
import re
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import Path

HEADER = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]

Row = tuple[int, int, str, str, bool]  # qid1, qid2, question1, question2, is_duplicate


@dataclass(frozen=True)
class QuestionPairs:
    """The distinct questions, in order of first appearance, and the labelled pairs of them.

    questions: Q texts. ids: int64 [Q]. pairs: int32 [P, 2], positions of the questions, one for
    each good row but those that pair a question with itself. is_duplicate: bool [P].
    report: `rows` (good ones), `skipped_rows` (bad ones), `same_text_ids` (ids that are left out
    because their text stood under an earlier id), `changed_texts` (ids whose text changed later;
    the first text is kept), `self_pairs` (rows that pair a question with itself).
    """

    questions: list[str]
    ids: np.ndarray
    pairs: np.ndarray
    is_duplicate: np.ndarray
    report: dict[str, int]


def read_quora(path: Path, *, skip_bad_rows: bool = False, max_rows: int = 0) -> QuestionPairs:
    """Read a file in the format of Quora's `quora_duplicate_questions.tsv`.

    `max_rows` stops after that many good rows; 0 reads all. A bad row is a UserError with the
    line where it starts, or, with `skip_bad_rows`, is counted and costs only itself.
    """
    if max_rows < 0:
        raise UserError(f"`max_rows`: expected 0 (all) or more, got {max_rows}")
    lines = _read_lines(path)
    body = _check_header(path, lines)
    rows: list[Row] = []
    skipped = 0
    for start, row in _parse_rows(lines, body):
        if isinstance(row, str):
            if not skip_bad_rows:
                raise UserError(
                    f"{path}, line {start + 1}: {row}; mend the row, or skip bad rows with "
                    "the setting data.skip_bad_rows=True"
                )
            skipped += 1
            continue
        rows.append(row)
        if len(rows) == max_rows:
            break
    if not rows:
        raise UserError(
            f"{path}: expected rows of question pairs below the header, got no good row and "
            f"{skipped} bad ones; name another file with `data.path`"
        )
    data = gather_pairs(rows)
    data.report["skipped_rows"] = skipped
    return data


def gather_pairs(rows: Iterable[Row]) -> QuestionPairs:
    """Number the questions of `rows` by first appearance; one text is one question."""
    questions: list[str] = []
    ids: list[int] = []
    of_id: dict[int, int] = {}
    of_text: dict[str, int] = {}
    same_text, changed = 0, set()

    def position(identity: int, text: str) -> int:
        nonlocal same_text
        known = of_id.get(identity)
        if known is not None:
            if questions[known] != text:
                changed.add(identity)
            return known
        known = of_text.get(text)
        if known is None:
            known = of_text[text] = len(questions)
            questions.append(text)
            ids.append(identity)
        else:
            same_text += 1
        of_id[identity] = known
        return known

    pairs: list[tuple[int, int]] = []
    labels: list[bool] = []
    self_pairs = 0
    for id1, id2, text1, text2, label in rows:
        pair = position(id1, text1), position(id2, text2)
        if pair[0] == pair[1]:
            self_pairs += 1
        else:
            pairs.append(pair)
            labels.append(label)
    report = {
        "rows": len(pairs) + self_pairs,
        "skipped_rows": 0,
        "same_text_ids": same_text,
        "changed_texts": len(changed),
        "self_pairs": self_pairs,
    }
    return QuestionPairs(
        questions=questions,
        ids=np.array(ids, np.int64),
        pairs=np.array(pairs, np.int32).reshape(-1, 2),
        is_duplicate=np.array(labels, np.bool_),
        report=report,
    )


def _read_lines(path: Path) -> list[str]:
    """The file's lines; a byte that is not UTF-8 becomes a lone surrogate."""
    try:
        data = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: expected a file of question pairs, got: {error.strerror}; "
            "name the file with `data.path`"
        ) from error
    if not data:
        raise UserError(
            f"{path}: expected a file of question pairs, got an empty file; "
            "name another file with `data.path`"
        )
    return data.decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")


def _check_header(path: Path, lines: list[str]) -> int:
    """The index of the first line below the header."""
    try:
        fields, body = _split_row(lines, 0)
    except ValueError:
        fields, body = [], 1
    if fields != HEADER:
        raise UserError(
            f"{path}, line 1: expected the header {' '.join(HEADER)!r} with tabs between, "
            f"got {_short(lines[0])}; give a file in the format of Quora's pair file"
        )
    return body


def _parse_rows(lines: list[str], start: int) -> Iterator[tuple[int, Row | str]]:
    """Yield (index of the row's first line, the row or what is wrong with it)."""
    while start < len(lines):
        line = lines[start]
        if line in ("", "\r"):
            start += 1
            continue
        end = start + 1
        try:
            if '"' in line:
                fields, end = _split_row(lines, start)
            else:
                fields = line.removesuffix("\r").split("\t")
            if len(fields) != len(HEADER):
                # The row's end is in doubt, so it must not take the lines below with it.
                end = start + 1
                raise ValueError(f"expected 6 fields, got {len(fields)} in {_short(line)}")
            row: Row | str = _parse_fields(fields)
        except ValueError as error:
            row = str(error)
        yield start, row
        start = end


def _split_row(lines: list[str], start: int) -> tuple[list[str], int]:
    """The fields of a row that may hold quotes, and the index of the line after it.

    Quotes count at a field's start only, and a closing quote must end its field.
    """
    fields: list[str] = []
    index, at = start, 0
    while True:
        line = lines[index].removesuffix("\r")
        if line.startswith('"', at):
            text, index, stop = _quoted_field(lines, index, at + 1)
            line = lines[index].removesuffix("\r")
            # Else an unclosed quote would close at the next row's quote, and take that row along.
            if stop < len(line) and line[stop] != "\t":
                raise ValueError(
                    "expected a tab after a closing quote (a quote inside a quoted field is "
                    f"doubled), got {_short(line[stop:])} in {_short(lines[start])}"
                )
        else:
            stop = line.find("\t", at)
            stop = len(line) if stop < 0 else stop
            text = line[at:stop]
        fields.append(text)
        if stop == len(line):
            return fields, index + 1
        at = stop + 1


def _quoted_field(lines: list[str], index: int, at: int) -> tuple[str, int, int]:
    """The field whose text starts at (`index`, `at`), and where its closing quote ends."""
    start = index
    parts: list[str] = []
    while True:
        line = lines[index]
        stop = line.find('"', at)
        if stop < 0:
            parts.append(line[at:] + "\n")
            index, at = index + 1, 0
            # The beginning of a row inside a quoted field: it was not closed, and another quote
            # further down would take all rows between for its text.
            if index == len(lines) or _ROW_START.match(lines[index]):
                raise ValueError(f"expected a closing quote in {_short(lines[start])}")
        elif line.startswith('"', stop + 1):
            parts.append(line[at : stop + 1])
            at = stop + 2
        else:
            return "".join(parts) + line[at:stop], index, stop + 1


def _parse_fields(fields: list[str]) -> Row:
    row, id1, id2, text1, text2, label = fields
    _parse_id("id", row)
    first, second = _parse_id("qid1", id1), _parse_id("qid2", id2)
    if label != "0" and label != "1":
        raise ValueError(f"expected `is_duplicate` 0 or 1, got {_short(label)}")
    for name, text in (("question1", text1), ("question2", text2)):
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                bad = text[error.start : error.end].encode("utf-8", "surrogateescape")
                raise ValueError(f"expected UTF-8 in `{name}`, got the bytes {bad!r}") from None
    return first, second, text1, text2, label == "1"


def _parse_id(name: str, text: str) -> int:
    # int() alone would accept blanks, signs, underscores and other scripts' digits.
    if text.isascii() and text.isdigit() and len(text) <= 19 and (value := int(text)) < 2**63:
        return value
    raise ValueError(f"expected `{name}` to be a whole number, got {_short(text)}")


_ROW_START = re.compile(r"\d+\t\d+\t\d+\t")
_REPR = reprlib.Repr()
_REPR.maxstring = 60


def _short(text: str) -> str:
    return _REPR.repr(text)
