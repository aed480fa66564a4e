"""The hits of texts: found in a store, scored by a model of pairs, and explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from qpr_jax.data.entries import Id
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError
from qpr_jax.index.close_pairs import pair_distances
from qpr_jax.index.protocol import Hit, Store, similar_id
from qpr_jax.index.vectors import distances_to
from qpr_jax.pair_model.guards import GUARDS, compare_words
from qpr_jax.pair_model.plain import probability
from qpr_jax.text.cleaning import Cleaner, as_texts, folded, has_word
from qpr_jax.text.differences import Explanation, find_differences

# What orders hits: False: the distance; None: the model of pairs, if there is one.
Rerank = Literal[False, "cross_encoder"] | None
_MOST_COMPARED = 16_384  # hits of a query among which copies are looked for


class PairModel(Protocol):
    """Scores pairs of texts; safe to use from several threads."""

    @property
    def depth(self) -> int:
        """How many hits of a search it orders at least."""

    def logits(
        self,
        first: Sequence[str],
        second: Sequence[str],
        distances: np.ndarray,
        spreads: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the logits of pairs of texts, float64 [m].

        Args:
          first, second: m texts each, as the encoder reads them.
          distances: of their vectors, squared, float [m].
          spreads: float [m], of pairs of a table (see `plain`); None: hits of a search.
        """


def search_texts(
    store: Store, texts: Sequence[str], vectors: np.ndarray, k: int, *, distinct: bool = False
) -> list[list[Hit]]:
    """Find the `k` nearest questions of texts, the text itself and its copies first.

    A blank text has none. A text is searched for more than `k` hits while all that were found are
    as near as the first one, for texts of one vector are no copies, and one of them may be its own.

    distinct: of hits that are copies keep the first, and search until `k` are left.
    """
    results: list[list[Hit]] = [[] for _ in texts]
    short = np.flatnonzero([bool(text.strip()) for text in texts])
    most = max(k, _MOST_COMPARED)
    size = min(2 * k if distinct else k + 1, most)
    while len(short):
        left = []
        for row, found in zip(short.tolist(), store.search(vectors[short], size), strict=True):
            hits = _copies_first(texts[row], found)
            if distinct:
                first: dict[str, Hit] = {}
                for hit in hits:
                    first.setdefault(folded(hit.question), hit)
                hits = [*first.values()]
            results[row] = hits[:k]
            ties = found and found[0].distance == found[-1].distance
            if len(found) == size < most and (len(hits) < k if distinct else ties):
                left.append(row)
        short, size = np.array(left, np.int64), min(4 * size, most)
    return results


def _copies_first(query: str, hits: list[Hit]) -> list[Hit]:
    """Put the text of a query itself first, then its copies; the others keep their order."""
    folded_query = folded(query)

    def order(hit: Hit) -> tuple[bool, bool]:
        text = text_of(hit)
        return text != query, folded(text) != folded_query

    return sorted(hits, key=order)


def text_of(hit: Hit) -> str:
    """Return the text of a hit that matched."""
    return str((hit.payload or {})[hit.column]) if hit.column else hit.question


def score_hits(
    model: PairModel,
    encoder: Encoder,
    store: Store,
    queries: Sequence[str],
    hits: Sequence[Sequence[Hit]],
    *,
    cleaned: Sequence[str] | None = None,
    sort: bool = True,
) -> list[list[Hit]]:
    """Set the scores of hits and, if `sort`, sort those of each query: copies first, by logit.

    Texts are compared as they are encoded. A hit that is a copy of its query has the score 1.

    cleaned: the queries as they are encoded; None: they are cleaned here.
    """
    cleaner = store.cleaner
    cleaned = cleaner.clean_all(queries) if cleaned is None else cleaned
    flat = [hit for found in hits for hit in found]
    asked = [query for query, found in zip(queries, hits, strict=True) for _ in found]
    first = [query for query, found in zip(cleaned, hits, strict=True) for _ in found]
    questions = [*map(text_of, flat)]
    second = cleaner.clean_all(questions)
    distances = np.array([hit.distance for hit in flat], np.float64)
    if store.index_config.metric == "ip":
        distances = 2 + 2 * distances
    _tell_apart(encoder, cleaner, asked, questions, first, second, distances)
    logits = model.logits(first, second, distances)
    spelled = zip(map(folded, queries), hits, strict=True)
    copies = [query == folded(text_of(hit)) for query, found in spelled for hit in found]
    pairs = zip(asked, questions, strict=True)
    logits[[not (has_word(one) and has_word(other)) for one, other in pairs]] = -np.inf
    logits[copies] = np.inf
    scores = np.where(copies, 1.0, probability(logits)).tolist()
    scored, start = [], 0
    for found in hits:
        rows = [*range(start, start + len(found))]
        if sort:  # of copies, the text of the query itself comes first, as in `hits`
            rows.sort(key=lambda i: -logits[i])
        scored.append([flat[i]._replace(score=scores[i]) for i in rows])
        start += len(found)
    return scored


def _tell_apart(
    encoder: Encoder,
    cleaner: Cleaner,
    asked: Sequence[str],
    found: Sequence[str],
    first: list[str],
    second: list[str],
    distances: np.ndarray,
) -> None:
    """Compare texts as they are where cleaning alone makes them equal (`text.cleaning`)."""
    for at, pair in enumerate(zip(asked, found, strict=True)):
        equal = first[at] == second[at] and folded(pair[0]) != folded(pair[1])
        if equal and cleaner.told_apart(pair):
            first[at], second[at] = pair
            ends = np.array([[0], [1]])
            distances[at] = pair_distances(encoder.encode([*pair]), *ends)[0]


def explain(
    model: PairModel | None,
    encoder: Encoder,
    store: Store,
    text: str,
    other: str | None = None,
    id: Id | None = None,
) -> Explanation:
    """Explain the score of a text and another one: `other`, or the nearest one of an `id`."""
    if (other is None) is (id is None):
        raise UserError(f"expected `other` or `id`, got {'none' if id is None else 'both'}")
    others = _texts_of(store, id) if other is None else [other]
    # As they are: whatever compares texts cleans them, and twice would differ from once.
    text, *others = as_texts([text, *others], "text and other")
    query, *cleaned = store.cleaner.clean_all([text, *others])
    vectors, index_config = encoder.encode([query, *cleaned]), store.index_config
    stored = vectors[1:].astype(index_config.vectors)  # as if they were indexed
    rows = np.arange(len(stored))[None]
    distances = distances_to(vectors[:1], stored, rows, index_config.metric)[0].tolist()
    nearest = int(np.argmin(distances))
    hit = Hit(-1, others[nearest], distances[nearest])
    if model is not None:
        ((hit,),) = score_hits(model, encoder, store, [text], [[hit]], cleaned=[query])
    found = compare_words([query], [cleaned[nearest]])[0, :-1]
    named = tuple(name for name, there in zip(GUARDS, found, strict=True) if there)
    differences = find_differences(query, cleaned[nearest])
    return Explanation(hit.distance, hit.score, named, differences)


def _texts_of(store: Store, id: Id | None) -> list[str]:
    (found,) = (None,) if id is None else store.get([id])
    if found is None:
        what = f"`id`: expected the id of an indexed question, got {id!r:.80}"
        what += similar_id(store, id)
        raise UserError(what, remedy="use the id of a hit, or give the text as `other`")
    return found.texts(store.index_config.text_columns)
