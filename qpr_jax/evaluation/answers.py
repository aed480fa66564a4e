"""Queries with known answers: scores of a search, and the queries at which it fails.

A kind says what differs between two texts. A query is compared with the known paraphrase that
shares most words with it, which does not depend on the index, so shares can be compared between
indexes. A failing query is also compared with its first hit, for which it was mistaken.
"""

from __future__ import annotations

import collections
import csv
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from qpr_jax.data.entries import Id, id_key
from qpr_jax.data.question_pairs import connect
from qpr_jax.errors import UserError, counted
from qpr_jax.evaluation.retrieval import DEPTH, SearchFn, first_right, first_scores, roc_auc
from qpr_jax.evaluation.scores import best_thresholds
from qpr_jax.files import StrPath, write_atomically
from qpr_jax.index.protocol import CLOSE, Hit, Store
from qpr_jax.text.differences import names_differ, negates, numbers_differ
from qpr_jax.text.tokenizer import replace_surrogates, tokenize

COLUMNS = (
    *("query_id", "query", "expected_id", "expected", "expected_kinds"),
    *("first_id", "first", "first_distance", "first_kinds", "right_place", "right_distance"),
)
FAILED = ("query", "expected_ids", "right_place", "first_id", "first", "first_score")
_BLOCK = 1024  # queries searched at once
_SHORT, _LONG = 4, 20  # words
_TIMES = 1.5  # as many words
KINDS = {
    "numbers": "the numbers differ",
    "negation": "only one of the two negates",
    "names": "only one of the two has a certain name",
    "order": "the same words in another order",
    "same": "only case or marks differ",
    "longer": f"the query has at least {_TIMES:g} times the words",
    "shorter": f"the other question has at least {_TIMES:g} times the words",
    "short": f"the query has at most {_SHORT} words",
    "long": f"the query has more than {_LONG} words",
    "unseen": "the query has a word that the encoder does not know",
}


def search_in_blocks(search: SearchFn, queries: Sequence[str], k: int) -> list[Sequence[Hit]]:
    """Search for many queries, some at once, and return the hits of each."""
    found: list[Sequence[Hit]] = []
    for start in range(0, len(queries), _BLOCK):
        found += search(queries[start : start + _BLOCK], k)
    return found


def relevance_scores(
    search: SearchFn,
    relevant: Mapping[str, Set[Id]],
    *,
    other_texts: bool = False,
    failed: StrPath | None = None,
) -> dict[str, Any]:
    """Score a search, such as `Retriever.search`, for queries that need not be indexed.

    Args:
      search: returns hits, best first.
      relevant: query -> `id_key` of each question that means the same; none: it has no answer.
      other_texts: whether to ignore hits that have the text of the query.
      failed: gets the queries whose first hit is wrong, as CSV with the columns FAILED.

    Returns:
      The number of `queries` with an answer, and their `hits@1`, `hits@10`, `mrr@20` and
      `recall@10`. With queries that have none, `has_answer`, as of `answer_scores`.
    """
    queries = list(relevant)
    relevance, first = np.zeros((len(queries), DEPTH), bool), list[Hit | None]()
    all_hits = search_in_blocks(search, queries, 2 * DEPTH)
    for row, (query, found) in enumerate(zip(queries, all_hits, strict=True)):
        seen = [hit for hit in found if not other_texts or hit.question != query][:DEPTH]
        relevance[row, : len(seen)] = [id_key(hit.id) in relevant[query] for hit in seen]
        first.append(seen[0] if seen else None)
    counts = np.array([len(relevant[query]) for query in queries])
    answered = counts > 0
    scores: dict[str, Any] = {"queries": int(answered.sum()), **first_scores(relevance[answered])}
    scores["recall@10"] = float((relevance[answered, :10].sum(axis=1) / counts[answered]).mean())
    if not answered.all():
        scores["has_answer"] = answer_scores(first, answered)
    if failed is not None:
        places = first_right(relevance)
        wrong = np.flatnonzero(answered & (places != 1)).tolist()
        _write(failed, FAILED, (_failed(queries[i], relevant, places[i], first[i]) for i in wrong))
    return scores


def _failed(
    query: str, relevant: Mapping[str, Set[Id]], place: int, hit: Hit | None
) -> tuple[Any, ...]:
    """Return the cells of FAILED; `place` is 0 where no hit is right."""
    shown = (hit.id, hit.question, hit.score) if hit else (None, None, None)
    return (query, sorted(map(str, relevant[query])), place or None, *shown)


def answer_scores(first: Sequence[Hit | None], answered: np.ndarray) -> dict[str, Any]:
    """Score how well first hits tell which queries have an answer.

    Args:
      first: the first hit of each query, None where there is none.
      answered: bool [n], whether the query has an answer; both kinds occur.

    Returns:
      `unanswered`, the number of queries without an answer; `roc_auc` of the score, or of the
      distance where there is no score. With scores, the `accuracy` of `Hit.close`, beside the
      `majority_accuracy` of one answer to all; and the `best_min_score`, with the mean accuracy of
      both kinds, `best_balanced_accuracy`: None where the ROC AUC may be chance (Mann and Whitney,
      1947). `no_min_score` says why there is none.
    """
    scored = any(hit is not None and hit.score is not None for hit in first)
    strengths = np.array(
        [-np.inf if hit is None else (hit.score or 0) if scored else -hit.distance for hit in first]
    )
    best = best_thresholds(1 - strengths, answered)["balanced"]
    auc = roc_auc(-strengths[answered], -strengths[~answered])
    count, others = int(answered.sum()), int((~answered).sum())
    chance = 0.5 + 2 * math.sqrt((len(first) + 1) / (12 * count * others))
    scores: dict[str, Any] = {"unanswered": others, "roc_auc": auc}
    if not scored:
        return scores | {"no_min_score": "hits in the order of distance have no score"}
    scores["accuracy"] = float(((strengths >= CLOSE) == answered).mean())
    scores["majority_accuracy"] = max(count, others) / len(first)
    scores |= dict.fromkeys(("best_min_score", "best_balanced_accuracy"))
    if auc <= chance:
        what = f"with {counted(count, 'query')} that have an answer and {others:,} without, a ROC "
        what += f"AUC up to {min(chance, 1):.2f} may be chance; ask more of both kinds"
        return scores | {"no_min_score": what}
    scores["best_min_score"] = math.floor(1000 * min(1, 1 - best)) / 1000
    right = (1 - strengths <= best) == answered
    mean = (float(right[answered].mean()) + float(right[~answered].mean())) / 2
    return scores | {"best_balanced_accuracy": mean}


def kinds_of(query: str, other: str, vocabulary: frozenset[str] | None = None) -> list[str]:
    """Return the KINDS of a query and another question, in their order."""
    words, others = tokenize(query), tokenize(other)
    is_kind = {
        "numbers": numbers_differ(query, other),
        "negation": negates(query) != negates(other),
        "names": names_differ(query, other),
        "order": words != others and sorted(words) == sorted(others),
        "same": words == others,
        "longer": len(words) >= _TIMES * max(1, len(others)),
        "shorter": len(others) >= _TIMES * max(1, len(words)),
        "short": len(words) <= _SHORT,
        "long": len(words) > _LONG,
        "unseen": vocabulary is not None and not vocabulary.issuperset(words),
    }
    return [kind for kind in KINDS if is_kind[kind]]


def search_results(
    search: SearchFn,
    questions: Mapping[int, str],
    pairs: np.ndarray,
    vocabulary: frozenset[str] | None = None,
) -> list[dict[str, Any]]:
    """Search for the queries of a split; return a row of COLUMNS for each, in the order of ids.

    The right hit is the first of `DEPTH` hits that is a known paraphrase: `right_place` is its
    place from 1, None if there is none. A query fails where that is not 1.

    Args:
      search: searches the index of the questions.
      questions: the text of each id in `pairs`.
      pairs: int64 [P, 2], ids, the query first. Known paraphrases of a query are all questions
        that pairs link to it, directly or through others.
      vocabulary: words that the encoder knows; None for an encoder without a list of words.
    """
    paraphrases = known_paraphrases(pairs)
    texts = [questions[query] for query in paraphrases]
    rows = []
    for query, text, hits in zip(
        paraphrases, texts, search_in_blocks(search, texts, DEPTH + 1), strict=True
    ):
        others = [hit for hit in hits if id_key(hit.id) != query][:DEPTH]
        if not others:
            what = f"question {query}: expected another question among its hits, got none"
            raise UserError(what, remedy="build the index again")
        # Of equally close paraphrases the one with the smallest id.
        expected = max(paraphrases[query], key=lambda i: (_overlap(text, questions[i]), -i))
        places = (place for place, hit in enumerate(others) if id_key(hit.id) in paraphrases[query])
        place = next(places, None)
        first, right = others[0], None if place is None else others[place]
        values = (
            *(query, text),
            *(expected, questions[expected], kinds_of(text, questions[expected], vocabulary)),
            *(first.id, first.question, first.distance),
            kinds_of(text, first.question, vocabulary),
            *(None if place is None else place + 1, right and right.distance),
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _overlap(first: str, second: str) -> float:
    """Return the Jaccard index of the sets of words; 1 if both are empty."""
    words, others = {*tokenize(first)}, {*tokenize(second)}
    return len(words & others) / len(words | others) if words | others else 1.0


def known_paraphrases(pairs: np.ndarray) -> dict[int, list[int]]:
    """Return the queries of pairs int64 [P, 2], by id, each with all questions linked to it."""
    ids, places = np.unique(pairs, return_inverse=True)
    clusters = connect(len(ids), places.reshape(-1, 2)).tolist()
    members = collections.defaultdict(list)
    for value, cluster in zip(ids.tolist(), clusters, strict=True):
        members[cluster].append(value)
    linked = {value: group for group in members.values() for value in group}
    queries = np.unique(pairs[:, 0]).tolist()
    return {query: [other for other in linked[query] if other != query] for query in queries}


def questions_of_pairs(store: Store, pairs: np.ndarray, source: str) -> dict[int, str]:
    """Return the text of each id in pairs int64 [P, 2] of the file `source`."""
    ids: list[int] = np.unique(pairs).tolist()
    texts: dict[int, str] = {}
    for value, question in zip(ids, store.get(ids), strict=True):
        if question is None:
            what = f"{source}: question {value} is not in the index"
            raise UserError(what, remedy="give a run from whose index no question was removed")
        texts[value] = question.text
    return texts


def failing(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of the queries that fail."""
    return [row for row in results if row["right_place"] != 1]


def write_failures(path: StrPath, results: Sequence[Mapping[str, Any]]) -> None:
    """Write the queries that fail as CSV, whole or not at all; kinds are separated by blanks."""
    _write(path, COLUMNS, (row.values() for row in failing(results)))


def _write(path: StrPath, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with write_atomically(path, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            cells = (" ".join(v) if isinstance(v, list) else v for v in row)
            writer.writerow([replace_surrogates(v) if isinstance(v, str) else v for v in cells])


def summarize(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown: the queries of each kind, how many fail, and the mistakes."""
    lines = ["| kind | queries | fail | mistaken | what differs |", "|---|---|---|---|---|"]
    for kind, meaning in {"all": "", **KINDS}.items():
        of_kind = [row for row in results if kind in ("all", *row["expected_kinds"])]
        mistaken = sum(kind in ("all", *row["first_kinds"]) for row in failing(results))
        fail = len(failing(of_kind))
        share = f" ({fail / len(of_kind):.3f})" if of_kind else ""
        lines.append(f"| {kind} | {len(of_kind):,} | {fail:,}{share} | {mistaken:,} | {meaning} |")
    return "\n".join(lines)
