"""Why two texts match: their distance, score and differences."""

from __future__ import annotations

import numpy as np

from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import UserError
from qpr_jax.ids import Id
from qpr_jax.index.base import Hit, Store
from qpr_jax.index.vectors import distances_to
from qpr_jax.reranking.guards import GUARDS, guards
from qpr_jax.reranking.model import PairModel, score_hits
from qpr_jax.text.base import as_texts
from qpr_jax.text.differences import Explanation, find_differences


def explain(
    model: PairModel | None,
    encoder: Encoder,
    store: Store,
    text: str,
    other: str | None = None,
    id: Id | None = None,
) -> Explanation:
    """Explain the score of a text and another one, `other`, or the question of an `id`."""
    if (other is None) is (id is None):
        raise UserError(f"expected `other` or `id`, got {'none' if id is None else 'both'}")
    question = _text_of(store, id) if other is None else other
    # As they are: whatever compares texts cleans them, and twice would differ from once.
    text, question = as_texts([text, question], "text and other")
    cleaned = store.cleaner.clean_all([text, question])
    hit = Hit(-1, question, _distance(store, *encoder.encode(cleaned)))
    if model is not None:
        ((hit,),) = score_hits(model, encoder, store, [text], [[hit]], cleaned=cleaned[:1])
    found = guards(cleaned[:1], cleaned[1:])[0]
    named = tuple(name for name, there in zip(GUARDS, found, strict=True) if there)
    return Explanation(hit.distance, hit.score, named, find_differences(cleaned[0], cleaned[1]))


def _distance(store: Store, left: np.ndarray, right: np.ndarray) -> float:
    """Compute the distance of a query float32 [d] to a text, were that one indexed: float32 [d]."""
    stored = right.astype(store.recipe.vectors)[None]
    return float(distances_to(left[None], stored, np.zeros((1, 1), int), store.recipe.metric)[0, 0])


def _text_of(store: Store, id: Id | None) -> str:
    (found,) = (None,) if id is None else store.get([id])
    if found is None:
        what = f"`id`: expected the id of an indexed question, got {id!r:.80}"
        raise UserError(what, remedy="use the id of a hit, or give the text as `other`")
    return found.text
