"""Baselines for translations that train no network: shared characters, and a linear map."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion

from experiments.lexical import cosine_top_k
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import DEPTH
from qpr_jax.evaluation.translation import score_rankings, text_groups, translation_accuracy
from qpr_jax.text.tokenizer import nfkc_lower, tokenize

CHARACTERS = (2, 4)  # lengths of the n-grams, which stay within words
_COLUMNS = 1024  # of the matrix of products, computed at once


def character_tfidf(sources: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """Score translations by the cosine of TF-IDF vectors of character n-grams.

    It is fitted on the texts of both sides, without knowing which belong together. It finds names,
    numbers and words that both languages spell alike; a text that shares nothing finds nothing.

    Returns:
      `to_source` and `to_target`, as `translation.score_translations` of the same texts.
    """
    if not sources or len(sources) != len(targets):
        raise UserError(
            f"expected as many sources as targets, one or more, got {len(sources):,} and "
            f"{len(targets):,}"
        )
    vectors = _characters(None).fit_transform([*sources, *targets])
    source, target = vectors[: len(sources)], vectors[len(sources) :]
    groups = text_groups(sources, len(sources)), text_groups(targets, len(targets))
    return {
        "to_source": translation_accuracy(_nearest(target, source), *groups),
        "to_target": translation_accuracy(_nearest(source, target), *groups),
    }


def character_tfidf_retrieval(
    queries: Sequence[str], answers: Sequence[str], corpus: Sequence[str]
) -> dict[str, float]:
    """Score how well `character_tfidf` finds the answer of each query among a corpus.

    Returns:
      `hits@1`, `hits@10` and `mrr@20`, as `translation.score_retrieval` of the same texts.
    """
    if not queries or len(queries) != len(answers):
        raise UserError(
            f"expected as many queries as answers, one or more, got {len(queries):,} and "
            f"{len(answers):,}"
        )
    vectorizer = _characters(None).fit([*queries, *answers, *corpus])
    by_feature = vectorizer.transform([*corpus, *answers]).T.tocsr()
    found = cosine_top_k(vectorizer.transform(queries), by_feature, DEPTH)
    return score_rankings(found, len(corpus), answers, corpus)


def ridge_map(
    train_texts: Sequence[str],
    train_vectors: np.ndarray,
    *,
    alpha: float = 1.0,
    words: int = 10_000,
    characters: int = 6_000,
) -> Callable[[Sequence[str]], np.ndarray]:
    """Fit a linear map from TF-IDF of words and of character n-grams to vectors.

    It minimizes |X W - Y|^2 + alpha |W|^2, Y the vectors less their mean, by the normal equations:
    4 (words + characters)^2 bytes, whatever the number of texts. (`sklearn.linear_model.Ridge`
    holds them as a sparse matrix, too, or solves for one column of Y after the other.)

    Args:
      train_texts: one or more.
      train_vectors: floating [n, d], what the texts are mapped to.
      alpha: above 0.
      words: how many words are features, the most frequent ones.
      characters: how many character n-grams are.

    Returns:
      encode: texts -> float32 [m, d], one or more texts. The vectors are not scaled to length 1:
        the less of a text is known, the shorter and the farther from all others is its vector, and
        the more translations are found from the other side.
    """
    if train_vectors.ndim != 2 or not len(train_vectors) or len(train_texts) != len(train_vectors):
        raise UserError(
            f"expected a vector for each text, one or more, got {len(train_texts):,} texts and "
            f"vectors {list(train_vectors.shape)}"
        )
    if not alpha > 0:
        raise UserError(f"alpha: expected a number above 0, got {alpha}")
    features = _features(words, characters)
    inputs = features.fit_transform(train_texts).tocsr()
    mean = train_vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    right = inputs.T @ (np.asarray(train_vectors, np.float32) - mean)
    left = _lower_products(inputs)
    left.flat[:: len(left) + 1] += alpha
    weights = cho_solve(cho_factor(left, lower=True, overwrite_a=True), right)

    def encode(texts: Sequence[str]) -> np.ndarray:
        return np.asarray(features.transform(texts) @ weights + mean, np.float32)

    return encode


def _nearest(queries: csr_matrix, candidates: csr_matrix) -> np.ndarray:
    return cosine_top_k(queries, candidates.T.tocsr(), 1)[:, 0]


def _features(words: int, characters: int) -> FeatureUnion:
    by_word = TfidfVectorizer(
        analyzer=tokenize, max_features=words, sublinear_tf=True, dtype=np.float32
    )
    return FeatureUnion([("words", by_word), ("characters", _characters(characters))])


def _characters(most: int | None) -> TfidfVectorizer:
    return TfidfVectorizer(
        analyzer="char_wb",
        preprocessor=nfkc_lower,
        ngram_range=CHARACTERS,
        max_features=most,
        sublinear_tf=True,
        dtype=np.float32,
    )


def _lower_products(inputs: csr_matrix) -> np.ndarray:
    """The lower triangle of inputs^T inputs, in memory by columns: float32 [features, features]."""
    size = inputs.shape[1]
    products = np.zeros((size, size), np.float32, order="F")
    columns = inputs.tocsc()
    for start in range(0, size, _COLUMNS):
        end = min(start + _COLUMNS, size)
        block = columns[:, start:end].T.tocsr() @ columns[:, start:].tocsr()
        products[start:, start:end] = block.toarray().T
    return products
