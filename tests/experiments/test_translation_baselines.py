import numpy as np
import pytest
from sklearn.linear_model import Ridge

from experiments import translation_baselines
from experiments.translation_baselines import (
    character_tfidf,
    character_tfidf_retrieval,
    ridge_map,
)
from qpr_jax.errors import UserError
from qpr_jax.evaluation.translation import score_translations

SOURCES = ["Anna lives in Berlin", "the hotel is here", "my cat", "Anna lives in Hamburg"]
TARGETS = ["Anna wohnt in Berlin", "das Hotel ist hier", "12 34", "Anna wohnt in Hamburg"]


def cosines(texts):
    """TF-IDF of n-grams within words, with loops: w is tf log-scaled, times smooth idf."""
    counts = []
    for text in texts:
        grams: dict[str, int] = {}
        for word in text.lower().split():
            for n in range(2, 5):
                padded = f" {word} "
                for i in range(max(len(padded) - n, 0) + 1):
                    # A word shorter than n is one n-gram, once.
                    if len(padded) >= n or n == 2:
                        grams[padded[i : i + n]] = grams.get(padded[i : i + n], 0) + 1
        counts.append(grams)
    names = sorted(set().union(*counts))
    tf = np.array([[grams.get(name, 0) for name in names] for grams in counts], float)
    idf = 1 + np.log((1 + len(texts)) / (1 + (tf > 0).sum(axis=0)))
    rows = np.where(tf > 0, 1 + np.log(np.maximum(tf, 1)), 0) * idf
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_shared_names_are_found_and_nothing_is_not():
    scores = character_tfidf(SOURCES, TARGETS)
    assert scores == {"to_source": 0.75, "to_target": 0.75}  # "my cat" shares nothing


def test_texts_that_share_nothing_find_nothing():
    assert character_tfidf(["abc", "def"], ["xyz", "uvw"]) == {"to_source": 0, "to_target": 0}


def test_characters_are_normalized():
    sources, targets = ["ÄRGER", "ﬁnal"], ["a\u0308rger", "Final"]
    assert character_tfidf(sources, targets) == {"to_source": 1, "to_target": 1}


def test_equal_texts_are_one_answer():
    sources, targets = ["Rom", "Bonn", "Rom"], ["rom", "bonn", "ROM!"]
    assert character_tfidf(sources, targets) == {"to_source": 1, "to_target": 1}


def test_against_loops():
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcd"), rng.integers(1, 7))) for _ in range(60)]
    sources = [" ".join(rng.choice(words, 5)) for _ in range(30)]
    targets = [" ".join([*text.split()[:2], *rng.choice(words, 4)]) for text in sources]
    all_cosines = cosines([*sources, *targets])
    across = all_cosines[:30, 30:]
    assert len({*sources}) == len({*targets}) == 30
    assert character_tfidf(sources, targets) == {
        "to_source": pytest.approx((across.argmax(axis=0) == np.arange(30)).mean()),
        "to_target": pytest.approx((across.argmax(axis=1) == np.arange(30)).mean()),
    }


def test_retrieval():
    corpus = ["Berlin", "what a dog", "DAS HOTEL ist hier?"]
    scores = character_tfidf_retrieval(SOURCES, TARGETS, corpus)
    # The second is found in the corpus, under another spelling; the third is not found.
    assert scores == {"hits@1": 0.75, "hits@10": 0.75, "mrr@20": 0.75}


def test_retrieval_without_a_corpus():
    assert character_tfidf_retrieval(["a b"], ["b a"], [])["hits@1"] == 1


def made_up(count, seed=0):
    """Texts of five words, and vectors that are sums of theirs."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefghij"), 6)) for _ in range(40)]
    vectors = rng.normal(size=(40, 8))
    chosen = np.array([rng.choice(40, 5, replace=False) for _ in range(count)])
    sums = vectors[chosen].sum(axis=1) + 0.5
    sums /= np.linalg.norm(sums, axis=1, keepdims=True)
    return [" ".join(words[i] for i in row) for row in chosen], sums.astype(np.float32)


@pytest.mark.parametrize("columns", [7, 1024])
def test_ridge_is_that_of_scikit_learn(monkeypatch, columns):
    monkeypatch.setattr(translation_baselines, "_COLUMNS", columns)
    texts, vectors = made_up(120)
    encode = ridge_map(texts[:100], vectors[:100], alpha=0.5, words=30, characters=50)
    features = translation_baselines._features(30, 50)
    inputs = features.fit_transform(texts[:100]).toarray().astype(float)
    assert inputs.shape == (100, 80)
    mean = vectors[:100].mean(axis=0)
    model = Ridge(alpha=0.5, fit_intercept=False).fit(inputs, vectors[:100] - mean)
    expected = model.predict(features.transform(texts[100:]).toarray()) + mean
    found = encode(texts[100:])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_ridge_learns_a_map_that_is_linear_in_words():
    texts, vectors = made_up(500)
    found = ridge_map(texts[:400], vectors[:400], alpha=0.1)(texts[400:])
    scores = score_translations(vectors[400:], found, vectors[400:])
    assert scores["cosine_target"] > 0.95
    assert scores["to_source"] > 0.9
    assert scores["to_target"] > 0.9


def test_a_text_without_known_features_gets_the_mean():
    texts, vectors = made_up(50)
    found = ridge_map(texts, vectors)(["ß", ""])
    np.testing.assert_allclose(found, [vectors.mean(axis=0)] * 2, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: character_tfidf(["a"], []), "as many sources as targets, .* got 1 and 0"),
        (lambda: character_tfidf([], []), "one or more, got 0 and 0"),
        (lambda: character_tfidf_retrieval(["a"], [], ["b"]), "as many queries .* got 1 and 0"),
        (lambda: ridge_map(["a"], np.ones((2, 3))), r"got 1 texts and vectors \[2, 3\]"),
        (lambda: ridge_map(["a"], np.ones((1, 3)), alpha=0), "alpha: .* above 0, got 0"),
        (lambda: ridge_map([], np.ones((0, 3))), r"got 0 texts and vectors \[0, 3\]"),
    ],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
