"""BEIR's format: a corpus, queries, and the relevance of documents to queries.

corpus.jsonl: `_id`, `title` (may be missing or empty), `text`. queries.jsonl: `_id`, `text`.
qrels/SPLIT.tsv: query, document and score, separated by tabs, below a header (`query-id corpus-id
score`). A score is a whole number, and 1 or more where the document is relevant. Each file may be
compressed, with .gz after its name. Ids are strings; a whole number is read as its digits.
See https://github.com/beir-cellar/beir.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from qpr_jax.data.columns import read_rows, write_json_lines, write_tsv
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.text.tokenizer import replace_surrogates

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
COLUMNS = ("query-id", "corpus-id", "score")
_REMEDY = "give a folder in BEIR's format"
_SCORE = re.compile(r"-?[0-9]{1,9}")

Qrels = dict[str, dict[str, int]]  # query -> document -> score


def read_corpus(folder: StrPath) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each document; the text is the title, a blank and the text.

    A UserError names the line of a row that cannot be read or that repeats an id.
    """
    yield from _texts(_file(folder, CORPUS), titled=True)


def read_queries(folder: StrPath) -> dict[str, str]:
    """Read the text of each query, by id; errors as in `read_corpus`."""
    return dict(_texts(_file(folder, QUERIES), titled=False))


def read_qrels(folder: StrPath, split: str) -> Qrels:
    """Read the scores of each query's documents in a split, in the order of the file.

    A UserError names the line of a row that cannot be read or that gives a pair another score.
    """
    path = _file(folder, f"{QRELS}/{split}.tsv")
    qrels: Qrels = {}
    for line, fields in read_rows(path, ["row"], format="lines"):
        row = "" if isinstance(fields, str) else str(fields["row"])
        cells = [cell.strip() for cell in row.split("\t")]
        is_row = len(cells) == len(COLUMNS) and all(cells)
        if is_row and line == 1 and not _SCORE.fullmatch(cells[-1]):
            continue  # the header, whatever it calls them
        if not is_row or not _SCORE.fullmatch(cells[-1]):
            expected = "two ids and a whole number, separated by tabs"
            raise _bad_row(path, line, f"expected {expected}, got {fields!r:.80}")
        query, document, score = cells
        if qrels.setdefault(query, {}).setdefault(document, int(score)) != int(score):
            raise _bad_row(path, line, f"query {query} and {document} have two scores")
    if not qrels:
        what = f"{path}: expected relevant documents, got none"
        raise UserError(what, remedy="name another with `split`")
    return qrels


def write_beir(
    folder: StrPath,
    corpus: Iterable[tuple[str, str]],
    queries: Iterable[tuple[str, str]],
    qrels: Mapping[str, Iterable[tuple[str, str, int]]],
) -> None:
    """Write a data set in BEIR's format: ids and texts of documents and of queries, and scores.

    The titles are empty. qrels: split -> (query, document, score).
    """
    path = pathlib.Path(folder)
    documents = ({"_id": name, "title": "", "text": text} for name, text in corpus)
    write_json_lines(path / CORPUS, documents)
    write_json_lines(path / QUERIES, ({"_id": name, "text": text} for name, text in queries))
    for split, scores in qrels.items():
        write_tsv(path / QRELS / f"{split}.tsv", COLUMNS, scores)


def _file(folder: StrPath, name: str) -> str:
    """Return the path of a file of the data set, compressed or not."""
    for path in (pathlib.Path(folder, name), pathlib.Path(folder, f"{name}.gz")):
        if path.is_file():
            return str(path)
    there = sorted(path.name.split(".")[0] for path in pathlib.Path(folder, QRELS).glob("*.tsv*"))
    splits = f" (splits: {', '.join(there)})" if there and name.startswith(QRELS) else ""
    raise UserError(f"{folder}: expected {name} in it, found none{splits}", remedy=_REMEDY)


def _texts(path: str, *, titled: bool) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for line, fields in read_rows(path, ["_id", "text"], format="jsonl", remedy=_REMEDY):
        if isinstance(fields, str):
            raise _bad_row(path, line, fields)
        text, title = fields["text"], fields.get("title") if titled else None
        identity = str(fields["_id"]) if isinstance(fields["_id"], str | int) else ""
        if not identity or replace_surrogates(identity) != identity:
            raise _bad_row(path, line, f"expected a string as `_id`, got {fields['_id']!r:.60}")
        if not isinstance(text, str) or not isinstance(title, str | None):
            raise _bad_row(path, line, "expected strings as `text` and `title`, got another type")
        if identity in seen:
            raise _bad_row(path, line, f"expected distinct ids, got {identity} twice")
        seen.add(identity)
        yield identity, f"{title or ''} {text}".strip()


def _bad_row(path: str, line: int, reason: str) -> UserError:
    return UserError(f"{path}, line {line}: {reason}", remedy="correct it")
