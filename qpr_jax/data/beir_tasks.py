"""Tasks of retrieval in BEIR's format, and how to make them of labeled pairs.

corpus.jsonl: `_id`, `title` (may be missing or empty), `text`. queries.jsonl: `_id`, `text`.
qrels/SPLIT.tsv: query, document and score, separated by tabs, below a header (`query-id corpus-id
score`). A score is a whole number, and 1 or more where the document is relevant. Each file may be
compressed, with .gz after its name. Ids are strings; a whole number is read as its digits.
See https://github.com/beir-cellar/beir.

The parts of `write_tasks` share no question. The rules are those of sentence-transformers' "Quora
Duplicate Questions" (see its README and create_splits.py). The pairs of a part serve classification
and mining, `beir` serves retrieval.
"""

from __future__ import annotations

import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from qpr_jax.data.columns import read_rows, write_tsv
from qpr_jax.data.question_pairs import (
    PAIRS_HEADER,
    QuestionPairs,
    in_one_cluster,
    transitive_clusters,
)
from qpr_jax.data.splits import group_questions
from qpr_jax.data.typed_rows import write_json_lines
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, replace_folder, write_json
from qpr_jax.text.tokenizer import normalized_text, replace_surrogates

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
COLUMNS = ("query-id", "corpus-id", "score")
_REMEDY = "give a folder in BEIR's format"
_SCORE = re.compile(r"-?[0-9]{1,9}")

Qrels = dict[str, dict[str, int]]  # query -> document -> score
PARTS = ("train", "dev", "test")
TRAIN, DEV, TEST = range(3)
MOST_QUERIES = {"dev": 5_000, "test": 10_000}  # at most


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


def write_tasks(
    folder: StrPath, data: QuestionPairs, *, dev: float = 0.05, test: float = 0.1
) -> dict[str, Any]:
    """Divide the questions of a file, the same way on every machine, and write a folder.

    Duplicates, by transitivity, and questions with the same normalized text are one component,
    which goes to one part as a whole. Components are taken in random order. Each goes with those
    that a pair of non-duplicates links to it and that have no part yet; otherwise few
    such pairs would have both questions in one held-out part. They go to dev unless dev would then
    exceed its share, else to test by the same rule, else to train.

    {train,dev,test}.tsv: `qid1 qid2 question1 question2 is_duplicate`, the labeled pairs with both
    questions in the part, in the order of the file.
    beir/: queries of dev and test, and all other questions as a corpus. A cluster has
    one query at most, and no other question has the normalized text of a query.
    report.json: counts.

    `dev` and `test`: shares of all questions. UserError for a part without duplicates or queries.
    """
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    part_of = _assign_parts(data, group_questions(data.questions, clusters), dev, test)
    ends = part_of[data.pairs]
    across = ends[:, 0] != ends[:, 1]  # no duplicates: these are in one part
    # A non-duplicate of one cluster is contradicted.
    inside = in_one_cluster(clusters, data.pairs) & ~data.is_duplicate
    part_of_pair = np.where(across | inside, -1, ends[:, 0])
    times = Counter(texts := [normalized_text(question) for question in data.questions])
    able = (clusters >= 0) & np.array([times[text] == 1 for text in texts], np.bool_)
    parts: dict[str, dict[str, int]] = {}
    qrels: dict[str, list[tuple[str, str, int]]] = {}
    asked = np.zeros(len(part_of), np.bool_)
    for part, name in enumerate(PARTS):
        there, labels = part_of == part, data.is_duplicate[part_of_pair == part]
        parts[name] = {
            "questions": int(there.sum()),
            "clusters": len(np.unique(clusters[there & (clusters >= 0)])),
            "duplicates": int(labels.sum()),
            "non_duplicates": int((~labels).sum()),
        }
        if not parts[name]["clusters"]:
            what = f"expected duplicates in each part, got none for {name}"
            raise UserError(what, remedy="change `dev` or `test`, or give more pairs")
        if name in MOST_QUERIES:
            queries = _queries(data, clusters, np.flatnonzero(able & there), part)
            asked[queries] = True
            qrels[name] = _relevant(data, clusters, queries)
            parts[name] |= {"queries": len(queries), "relevant": len(qrels[name])}
    dropped = {
        "non_duplicates_across_parts": int(across.sum()),
        "non_duplicates_of_one_cluster": int(inside.sum()),
    }
    counts = {"questions": len(data.questions), "corpus": int((~asked).sum())}
    report = {**data.report, **counts, "dropped": dropped, "parts": parts}
    with replace_folder(folder) as path:
        for part, name in enumerate(PARTS):
            write_tsv(path / f"{name}.tsv", PAIRS_HEADER, _pair_rows(data, part_of_pair == part))
        write_beir(path / "beir", _chosen_texts(data, ~asked), _chosen_texts(data, asked), qrels)
        write_json(path / "report.json", report)
    return report


def _chosen_texts(data: QuestionPairs, chosen: np.ndarray) -> Iterator[tuple[str, str]]:
    for i in np.argsort(data.ids).tolist():
        if chosen[i]:
            yield f"{data.ids[i]}", data.questions[i]


def _pair_rows(data: QuestionPairs, chosen: np.ndarray) -> Iterator[tuple[int, int, str, str, int]]:
    for a, b, label in np.column_stack([data.pairs, data.is_duplicate])[chosen].tolist():
        yield data.ids[a], data.ids[b], data.questions[a], data.questions[b], label


def _assign_parts(data: QuestionPairs, groups: np.ndarray, dev: float, test: float) -> np.ndarray:
    """Return the part of each question, int8 [Q]; see `write_tasks`."""
    if dev + test >= 1:
        what = f"expected shares below 1 in all, got {dev + test:g}"
        raise UserError(what, remedy="lower `dev` or `test`")
    count = int(groups.max(initial=-1)) + 1
    weights = np.bincount(groups, minlength=count)
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, groups, data.ids)
    links = groups[data.pairs[~data.is_duplicate]]
    links = np.concatenate([links, links[:, ::-1]])
    links = links[np.argsort(links[:, 0], kind="stable")]
    # The neighbors of group i are links[starts[i] : starts[i + 1], 1].
    starts = np.searchsorted(links[:, 0], np.arange(count + 1))
    room = {DEV: int(dev * len(groups)), TEST: int(test * len(groups))}
    part_of_group = np.full(count, -1, np.int8)
    for group in _shuffle(smallest, 0).tolist():
        if part_of_group[group] >= 0:
            continue
        others = links[starts[group] : starts[group + 1], 1]
        together = np.unique(np.append(others[part_of_group[others] < 0], group))
        weight = int(weights[together].sum())
        part = next((part for part in (DEV, TEST) if weight <= room[part]), TRAIN)
        if part != TRAIN:
            room[part] -= weight
        part_of_group[together] = part
    return part_of_group[groups]


def _shuffle(keys: np.ndarray, stream: int) -> np.ndarray:
    """Positions of distinct `keys` in random order, whatever order the keys are given in."""
    # The stream of a bit generator is the same in all versions of NumPy; the permutations that a
    # Generator makes from it may change (NEP 19).
    numbers = np.random.PCG64([0, stream]).random_raw(len(keys))
    return np.argsort(keys)[np.argsort(numbers, kind="stable")]


def _queries(
    data: QuestionPairs, clusters: np.ndarray, candidates: np.ndarray, part: int
) -> np.ndarray:
    """Choose one of the candidates of a part from each cluster, up to the limit."""
    name = PARTS[part]
    candidates = candidates[_shuffle(data.ids[candidates], 2 * part)]
    chosen = candidates[np.unique(clusters[candidates], return_index=True)[1]]
    # Shuffled again: otherwise large clusters would be more likely to come first.
    chosen = chosen[_shuffle(data.ids[chosen], 2 * part + 1)][: MOST_QUERIES[name]]
    if not len(chosen):
        reason = "each question of its clusters has the text of another"
        what = f"expected queries in {name}, got none: {reason}"
        raise UserError(what, remedy="raise `dev` or `test`, or give more pairs")
    return chosen


def _relevant(
    data: QuestionPairs, clusters: np.ndarray, queries: np.ndarray
) -> list[tuple[str, str, int]]:
    """Return the ids of a query and of another question of its cluster, and their score, sorted."""
    query_of = dict(zip(clusters[queries].tolist(), queries.tolist(), strict=True))
    others = np.setdiff1d(np.flatnonzero(np.isin(clusters, [*query_of])), queries)
    pairs = sorted((data.ids[query_of[clusters[i]]], data.ids[i]) for i in others.tolist())
    return [(f"{query}", f"{other}", 1) for query, other in pairs]
