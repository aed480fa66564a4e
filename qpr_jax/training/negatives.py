"""Hard negatives: near hits that are not a known paraphrase of their query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpr_jax.index.close_pairs import rows_of_blocks
from qpr_jax.index.protocol import Hit
from qpr_jax.text.tokenizer import normalized_text

# Of a row of a file of negatives; the last one is there if a model has scored the pair.
FIELDS = ("query", "negative", "rank", "distance", "positive_distance", "id", "score")
_CHUNK = 1024  # queries that are encoded and searched together

Find = Callable[[Sequence[str], int], tuple[np.ndarray, list[list[Hit]]]]
Score = Callable[[Sequence[tuple[str, str]]], np.ndarray]


@dataclass(frozen=True)
class Rules:
    """Which hits of a query become its negatives.

    With p the squared distance of the farthest known paraphrase of the query, the margin keeps hits
    at a squared distance of at least p (1 + `relative_margin`), as TopK-PercPos of NV-Retriever
    (Moreira et al., arXiv 2407.15831).
    """

    from_rank: int = 1  # first and last rank, from 1, among hits that are no known paraphrase
    to_rank: int = 50
    count: int = 4  # negatives of a query
    relative_margin: float | None = None
    max_score: float = 0.5  # the greatest probability that a negative is a paraphrase
    seed: int | None = None  # of a random choice among the hits left; None: takes the nearest


class Negative(NamedTuple):
    """A negative of the question at position `query`; rank, p and score as in `Rules`."""

    query: int
    hit: Hit
    rank: int
    farthest: float  # p

    def fields(self, questions: Sequence[str]) -> dict[str, object]:
        """Return the FIELDS; `id` is that of the negative in the index."""
        hit, query = self.hit, questions[self.query]
        values = query, hit.question, self.rank, hit.distance, self.farthest, hit.id, hit.score
        fields: dict[str, object] = dict(zip(FIELDS, values, strict=True))
        if hit.score is None:
            del fields["score"]
        return fields


def query_groups(questions: Sequence[str], groups: np.ndarray) -> list[np.ndarray]:
    """List the questions of each group of several texts, int64 [m] each; the smallest group first.

    groups: int [Q], from `data.splits.group_questions`: known paraphrases have the same number.
    """
    members = rows_of_blocks(groups)
    several = [rows for rows in members if len({normalized_text(questions[r]) for r in rows}) > 1]
    return sorted(several, key=len)


def find_negatives(
    questions: Sequence[str],
    groups: np.ndarray,
    queries: Sequence[np.ndarray],
    rules: Rules,
    find: Find,
    counts: Counter[str],
    score: Score | None = None,
) -> Iterator[list[Negative]]:
    """Yield the negatives of a chunk of queries at a time, nearest first for each query.

    Args:
      questions: Q texts.
      groups: int [Q], questions known to mean the same; see `query_groups`.
      queries: groups of `query_groups`; their questions are the queries.
      rules: which hits are kept.
      find: texts and k to the vectors of the texts, float32 [n, d], and the k nearest hits of each.
      counts: gets the number of `queries`, of `negatives`, of queries with fewer than `rules.count`
        (`short`), and of hits dropped by each rule: `paraphrases` (the query itself among them),
        `rank`, `margin`, `score`.
      score: pairs of texts to the probability that they mean the same, float [n]. It scores only as
        many hits as are needed to fill `rules.count`.
    """
    group_of = {normalized_text(q): g for q, g in zip(questions, groups.tolist(), strict=True)}
    rng = np.random.default_rng(rules.seed)
    starts = np.cumsum([0, *map(len, queries)])[:-1] // _CHUNK
    for number in np.unique(starts):  # of whole groups
        chunk = [queries[i] for i in np.flatnonzero(starts == number).tolist()]
        rows = np.concatenate(chunk).tolist()
        vectors, hits = find([questions[row] for row in rows], rules.to_rank + max(map(len, chunk)))
        eligible = []
        for row, farthest, found in zip(rows, _farthest(vectors, chunk), hits, strict=True):
            others = [h for h in found if group_of.get(normalized_text(h.question)) != groups[row]]
            counts["paraphrases"] += len(found) - len(others)
            ranked = [Negative(row, hit, i, farthest) for i, hit in enumerate(others, start=1)]
            kept = _keep(ranked[: rules.to_rank], rules, counts)
            if rules.seed is not None:
                kept = [kept[i] for i in rng.permutation(len(kept))]
            eligible.append(kept)
        chosen = _choose(questions, eligible, rules, score, counts)
        counts["queries"] += len(rows)
        counts["negatives"] += sum(map(len, chosen))
        counts["short"] += sum(len(some) < rules.count for some in chosen)
        yield [negative for some in chosen for negative in sorted(some, key=lambda n: n.rank)]


def _farthest(vectors: np.ndarray, groups: Sequence[np.ndarray]) -> Iterator[float]:
    """Yield the squared distance of each vector float32 [n, d] to the farthest of its group."""
    for group in np.split(vectors, np.cumsum([len(rows) for rows in groups])[:-1]):
        for vector in group:
            apart = group - vector
            yield float(np.einsum("nd,nd->n", apart, apart).max())


def _keep(ranked: list[Negative], rules: Rules, counts: Counter[str]) -> list[Negative]:
    """Keep the negatives within the ranks, beyond the margin and without a high score."""
    later = ranked[rules.from_rank - 1 :]
    margin = rules.relative_margin
    far = [n for n in later if margin is None or n.hit.distance >= n.farthest * (1 + margin)]
    kept = [n for n in far if n.hit.score is None or n.hit.score <= rules.max_score]
    counts["rank"] += len(ranked) - len(later)
    counts["margin"] += len(later) - len(far)
    counts["score"] += len(far) - len(kept)
    return kept


def _choose(
    questions: Sequence[str],
    eligible: list[list[Negative]],
    rules: Rules,
    score: Score | None,
    counts: Counter[str],
) -> list[list[Negative]]:
    """Choose the first of each query; with `score`, the first with a low enough score."""
    if score is None:
        return [some[: rules.count] for some in eligible]
    chosen: list[list[Negative]] = [[] for _ in eligible]
    while True:
        asked = []
        for i, some in enumerate(eligible):
            lacking = rules.count - len(chosen[i])
            asked += [(i, negative) for negative in some[:lacking]]
            eligible[i] = some[lacking:]
        if not asked:
            return chosen
        scores = score([(questions[n.query], n.hit.question) for _, n in asked])
        for (i, negative), value in zip(asked, scores.tolist(), strict=True):
            if value <= rules.max_score:
                chosen[i].append(negative._replace(hit=negative.hit._replace(score=value)))
            else:
                counts["score"] += 1
