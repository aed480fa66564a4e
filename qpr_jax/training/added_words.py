"""Words that are added to a trained encoder: their first embeddings, and what they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.data.words import learn_lexicon
from qpr_jax.encoders.cnn_encoder import CnnEncoder
from qpr_jax.encoders.cnn_kernels import sum_parts
from qpr_jax.evaluation.retrieval import exact_search, first_ranks, rank
from qpr_jax.index.vectors import exact_top_k

if TYPE_CHECKING:
    from qpr_jax.training.dataset import TrainDataset


def first_rows(
    encoder: CnnEncoder,
    words: Sequence[str],
    languages: Sequence[tuple[Sequence[str], Sequence[str]]],
) -> tuple[np.ndarray, np.ndarray]:
    """The first embeddings of A words, float32 [A, e], and for which something is known, bool [A].

    That of a word is the mean of those of its translations, by the probabilities of a lexicon that
    is learned for each language, and the mean over the languages that have the word; where it has
    no translation, the sum of its n-grams', if the vocabulary has such.

    `languages`: of each, n sources, in the language of the encoder, and their n translations.
    """
    rows = embed_words(encoder, words)
    sums = np.zeros_like(rows)
    counts = np.zeros(len(words), np.int32)  # of languages that have the word
    for sources, targets in languages:
        lexicon = learn_lexicon(targets, sources)
        translated = embed_words(encoder, lexicon.targets)
        for number, word in enumerate(words):
            if (entry := lexicon.of.get(word)) is not None:
                translations, shares = entry
                sums[number] += shares @ translated[translations]
                counts[number] += 1
    found = counts > 0
    rows[found] = sums[found] / counts[found, None].astype(np.float32)
    return rows, found | encoder.vocabulary.subwords


def embed_words(encoder: CnnEncoder, words: Sequence[str]) -> np.ndarray:
    """What the convolution reads for each word, the mean of its tokens' embeddings: [n, e]."""
    ids, offsets, _, parts = encoder.vocabulary.flat_ids(words)
    table = encoder.embedding
    if parts.tokens:
        table = np.concatenate([table, sum_parts(table, parts)[0]])
    lengths = np.diff(offsets)
    rows = np.zeros((len(words), table.shape[1]), np.float32)
    np.add.at(rows, np.repeat(np.arange(len(words)), lengths), table[ids])
    return rows / np.maximum(lengths, 1)[:, None].astype(np.float32)


def changes_of_added_words(dataset: TrainDataset, vectors: np.ndarray) -> dict[str, Any]:
    """Count the indexed questions that have an added word, and score what these words change.

    By exact distances to the vectors from before, which an index keeps when the encoder is put to
    it. `vectors`, float32 [Q, d], are of the indexed questions, with the new words.

    Returns:
      `words`, `changed_questions` and, of each split with pairs, `queries`, `changed_queries`, and
      `hits@1` per query, `before` and `after`, of `all` queries and of the `changed` ones.
    """
    start = cast(CnnEncoder, dataset.start)
    before = start.encode(dataset.data.questions)
    changed = (before.view(np.uint32) != vectors.view(np.uint32)).any(axis=1)
    facts: dict[str, Any] = {
        "words": dataset.tokenizer.size - dataset.frozen_rows,
        "changed_questions": int(changed.sum()),
    }

    clusters = dataset.clusters[: len(vectors)]
    for split in HELD_OUT:
        queries = np.unique(dataset.splits.pairs[split][:, 0])
        if not len(queries):
            continue
        other = changed[queries]
        found = rank(exact_search(before), queries)
        first = first_ranks(found, queries, clusters) == 1
        found = rank(lambda rows, k: exact_top_k(vectors[rows], before, k)[1], queries)
        after = first_ranks(found, queries, clusters) == 1
        facts[split] = {"queries": len(queries), "changed_queries": int(other.sum())}
        facts[split]["hits@1"] = {
            "all": {"before": _mean(first), "after": _mean(after)},
            "changed": {"before": _mean(first[other]), "after": _mean(after[other])},
        }
    return facts


def _mean(hits: np.ndarray) -> float | None:
    return float(hits.mean()) if len(hits) else None
