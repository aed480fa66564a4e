"""Questions, with their ids, from a file or standard input."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from qpr_jax.data.quoted_tsv import QUESTIONS, has_header, read_questions_table, short
from qpr_jax.data.tables import STANDARD_INPUT, Fields, input_name, read_rows
from qpr_jax.errors import UserError
from qpr_jax.ids import LARGEST_ID, parse_id

log = logging.getLogger("qpr_jax")


class Entry(NamedTuple):
    """A question, its id (None where the file has none) and the line where it begins."""

    line: int
    id: int | None
    question: str


def read_questions(
    path: str, *, format: str = "", column: str = "question", skip_bad_rows: bool = False
) -> Iterator[Entry]:
    """Yield the questions of a file, or of standard input where `path` is "-", in their order.

    Args:
      path: gzip and zstd are recognized by their first bytes.
      format: "lines" (a question in each; blank lines are skipped), "tsv" (a header, no quoting),
        "csv" (a header), "jsonl" (an object in each line) or "parquet". The last four have `column`
        and may have `id`, 0 to 2^63 - 1. If empty, the suffix of the file's name decides, and
        "lines" is the default; a file with the header `qid question` is then a table of
        `data.quoted_tsv`, and `qid` is the id.
      column: holds the question.
      skip_bad_rows: skip rows that cannot be read and log their number. Otherwise the first one is
        a UserError with its line.
    """
    skipped = 0
    for line, fields in _question_rows(path, column, format):
        reason, value = fields if isinstance(fields, str) else "", None
        if not isinstance(fields, str):
            question = fields[column]
            if not isinstance(question, str) or not question.strip():
                reason = f"expected a question in `{column}`, got {short(question)}"
            elif fields.get("id") not in (None, ""):
                value = parse_id(fields["id"])
                if value is None:
                    reason = f"`id`: expected 0 to {LARGEST_ID}, got {short(fields['id'])}"
        if not reason:
            yield Entry(line, value, str(question))
        elif skip_bad_rows:
            skipped += 1
        else:
            what = f"{input_name(path)}, line {line}: {reason}"
            raise UserError(what, remedy="correct it, or skip bad rows with {skip_bad_rows=True}")
    if skipped:
        log.warning("%s: %s bad rows left out", input_name(path), f"{skipped:,}")


def _question_rows(path: str, column: str, format: str) -> Iterator[tuple[int, Fields | str]]:
    other_format = format or path == STANDARD_INPUT or column != QUESTIONS[1]
    if other_format or not has_header(path, QUESTIONS):
        yield from read_rows(path, [column], format=format)
        return
    for line, qid, text in read_questions_table(path):
        yield line, text if qid is None else {"id": qid, column: text}
