"""BEIR's format: a corpus, queries, and how relevant which document is to which query.

corpus.jsonl: `_id`, `title` (may be missing or empty), `text`. queries.jsonl: `_id`, `text`.
qrels/SPLIT.tsv: query, document and score, tabs between, below a header (`query-id corpus-id
score`); score is a whole number, of 1 or more where the document is relevant. Each may be gzip,
with .gz after its name. Ids are strings; of whole numbers the digits are meant.
The format is that of https://github.com/beir-cellar/beir.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping

from qpr_jax.data.tables import read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import Path, write_atomically
from qpr_jax.text.tokenizer import whole_characters

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
COLUMNS = ("query-id", "corpus-id", "score")
_REMEDY = "give a folder in BEIR's format"
_GRADE = re.compile(r"-?[0-9]{1,9}")

Qrels = dict[str, dict[str, int]]  # query -> document -> score


def read_corpus(folder: Path) -> Iterator[tuple[str, str]]:
    """Id and text of each document, the text as BEIR's models see it: title, a blank, text.

    Holds the ids. UserError names the line of what cannot be read, and of an id that stands twice.
    """
    yield from _texts(_file(folder, CORPUS), titled=True)


def read_queries(folder: Path) -> dict[str, str]:
    """The text of each query, by id; errors as of `read_corpus`."""
    return dict(_texts(_file(folder, QUERIES), titled=False))


def read_qrels(folder: Path, split: str) -> Qrels:
    """What is relevant to each query of a split, in the order of the file.

    UserError names the line of what cannot be read, and of a pair that has two scores.
    """
    path = _file(folder, f"{QRELS}/{split}.tsv")
    qrels: Qrels = {}
    for line, fields in read_rows(path, ("row",), format="lines"):
        if isinstance(fields, str):
            raise _unreadable(path, line, fields)
        row = str(fields["row"]).split("\t")
        query, document, score = row if len(row) == len(COLUMNS) else ("", "", "")
        score = score.strip()
        if line == 1 and query and not _GRADE.fullmatch(score):
            continue  # the header, whatever it calls them
        if not query or not document or not _GRADE.fullmatch(score):
            raise _unreadable(
                path,
                line,
                f"expected two ids and a whole number, with tabs between, got {row!r:.80}",
            )
        if qrels.setdefault(query, {}).setdefault(document, int(score)) != int(score):
            raise _unreadable(path, line, f"query {query} and {document} have two scores")
    if not qrels:
        raise UserError(f"{path}: expected relevant documents, got none; name another split")
    return qrels


def write_beir(
    folder: Path,
    corpus: Iterable[tuple[str, str]],
    queries: Iterable[tuple[str, str]],
    qrels: Mapping[str, Iterable[tuple[str, str, int]]],
) -> None:
    """Write a set in BEIR's format.

    corpus, queries: ids and texts; titles are left empty. qrels: split -> (query, document, score).
    """
    path = pathlib.Path(folder)
    with write_atomically(path / CORPUS, "w") as file:
        file.writelines(
            json.dumps({"_id": i, "title": "", "text": text}) + "\n" for i, text in corpus
        )
    with write_atomically(path / QUERIES, "w") as file:
        file.writelines(json.dumps({"_id": i, "text": text}) + "\n" for i, text in queries)
    for split, rows in qrels.items():
        with write_atomically(path / QRELS / f"{split}.tsv", "w") as file:
            file.write("\t".join(COLUMNS) + "\n")
            file.writelines(f"{query}\t{document}\t{score}\n" for query, document, score in rows)


def _file(folder: Path, name: str) -> str:
    """The path of a file of a set, compressed or not."""
    for path in (pathlib.Path(folder, name), pathlib.Path(folder, f"{name}.gz")):
        if path.is_file():
            return str(path)
    there = sorted(path.name.split(".")[0] for path in pathlib.Path(folder, QRELS).glob("*.tsv*"))
    splits = f" (splits: {', '.join(there)})" if there and name.startswith(QRELS) else ""
    raise UserError(f"{folder}: expected {name} in it, found none{splits}; {_REMEDY}")


def _texts(path: str, *, titled: bool) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for line, fields in read_rows(path, ["_id", "text"], format="jsonl", remedy=_REMEDY):
        if isinstance(fields, str):
            raise _unreadable(path, line, fields)
        identity, text = fields["_id"], fields["text"]
        title = (fields.get("title") or "") if titled else ""
        if type(identity) is int:
            identity = f"{identity}"
        if not isinstance(identity, str) or not identity or whole_characters(identity) != identity:
            raise _unreadable(path, line, f"expected a string as `_id`, got {identity!r:.60}")
        if not isinstance(text, str) or not isinstance(title, str):
            raise _unreadable(path, line, "expected strings as `text` and `title`, got others")
        if identity in seen:
            raise _unreadable(path, line, f"the id {identity} stands twice")
        seen.add(identity)
        yield identity, f"{title} {text}".strip()


def _unreadable(path: str, line: int, reason: str) -> UserError:
    return UserError(f"{path}, line {line}: {reason}; mend it")
