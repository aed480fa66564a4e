"""How many mined negatives are paraphrases, counted by links that are hidden from the mining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.cli.negatives import light_rerank
from qpr_jax.index.negatives import Negative, Rules, Score, find_negatives, query_groups
from qpr_jax.retriever import Retriever
from qpr_jax.text.tokenizer import normalized_text


class Method(NamedTuple):
    """Rules, and who judges the hits: the light re-ranker, a cross-encoder's score, or nobody."""

    rules: Rules
    light: bool = False
    score: Score | None = None


class Corpus:
    """Some of the questions, indexed with the encoder of a run; ids are positions among them."""

    def __init__(
        self, questions: list[str], groups: np.ndarray, chosen: np.ndarray, run: str
    ) -> None:
        self.rows = np.flatnonzero(chosen)
        self.questions, self.groups = [questions[row] for row in self.rows], groups[self.rows]
        self.retriever = Retriever.build(self.questions, run=run)

    def find(
        self,
        groups: np.ndarray,
        queries: Sequence[np.ndarray],
        method: Method,
        counts: Counter[str],
    ) -> Iterator[list[Negative]]:
        """`find_negatives` of these groups, in this corpus."""
        retriever = self.retriever
        return find_negatives(
            *(self.questions, groups, queries, method.rules),
            encode=retriever.encode,
            find=retriever.store.search,
            rerank=light_rerank(retriever) if method.light else None,
            score=method.score,
            counts=counts,
        )


def hide_links(
    questions: Sequence[str], groups: np.ndarray, members: Sequence[np.ndarray], seed: int = 0
) -> np.ndarray:
    """`groups` with each of these, of three texts or more, split at random into two halves.

    Equal texts stay together. The first half has the greater number of texts.
    """
    rng = np.random.default_rng(seed)
    halves, fresh = groups.copy(), int(groups.max(initial=-1)) + 1
    for rows in members:
        texts = [normalized_text(questions[row]) for row in rows]
        several = sorted({*texts})
        if len(several) < 3:
            continue
        order = rng.permutation(len(several))
        second = {several[i] for i in order[(len(several) + 1) // 2 :]}
        halves[[row for row, text in zip(rows, texts, strict=True) if text in second]] = fresh
        fresh += 1
    return halves


def false_negatives(
    corpus: Corpus,
    chosen: np.ndarray | None,
    method: Method,
    *,
    most: int = 0,
) -> dict[str, float]:
    """How many negatives are paraphrases by labels that the mining did not see.

    Each cluster of three questions or more is known as two halves. Queries are the questions of
    halves that have another question in their half and, by all labels, paraphrases in the other.

    chosen: bool [Q], questions whose clusters are counted; None: all. most: queries, about, of
    clusters at random; 0: all.
    """
    whole = query_groups(corpus.questions, corpus.groups)
    if chosen is not None:
        whole = [rows for rows in whole if chosen[rows].all()]
    hidden = hide_links(corpus.questions, corpus.groups, whole)
    split = {int(corpus.groups[rows[0]]) for rows in whole if len({*hidden[rows].tolist()}) > 1}
    queries = [
        rows
        for rows in query_groups(corpus.questions, hidden)
        if int(corpus.groups[rows[0]]) in split
    ]
    if most:
        order = np.random.default_rng(0).permutation(len(queries))
        ends = np.cumsum([len(queries[i]) for i in order])
        taken = order[: int(np.searchsorted(ends, most)) + 1]
        queries = sorted((queries[i] for i in taken), key=len)
    counts: Counter[str] = Counter()
    false: Counter[int] = Counter()
    for some in corpus.find(hidden, queries, method, counts):
        for negative in some:
            same = corpus.groups[negative.query] == corpus.groups[negative.hit.id]
            false[negative.query] += int(same)
    return {
        "queries": counts["queries"],
        "negatives": counts["negatives"],
        "false": false.total(),
        "queries_with_false": sum(count > 0 for count in false.values()),
    }
