"""The nearest questions of texts: copies of a text come first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpr_jax.index.base import Hit, Store
from qpr_jax.text.folding import folded

_MOST_COMPARED = 16_384  # hits of a query among which copies are looked for


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
    return sorted(
        hits, key=lambda hit: (hit.question != query, folded(hit.question) != folded_query)
    )
