"""The features of pairs of texts, against a reference of plain Python."""

import collections
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax.pair_model.features import BITS, FEATURES, MOST, FeatureExtractor, zero_weights
from qpr_jax.pair_model.terms import Frequencies
from qpr_jax.text.tokenizer import tokenize
from tests.pair_model.models import WordEncoder

CORPUS = [
    "What is the price of a car in 2015?",
    "What is the price of an automobile in 2016?",
    "What isn't the price?",
    "How much is a car?",
    "Naïve café — is it open?",
    "",
    "?",
    "price price price of the the car",
    "What is a vector space? " * 40,
]
WEIGHTS = np.random.default_rng(3).normal(size=1 << BITS).astype(np.float32)


@pytest.fixture(scope="module")
def extractor() -> FeatureExtractor:
    return FeatureExtractor(WordEncoder(), Frequencies.count(CORPUS), WEIGHTS)


def test_words_that_all_texts_have_count_as_others_do():
    common = FeatureExtractor(WordEncoder(), Frequencies.count(["a car"] * 50), WEIGHTS)
    found = dict(zip(FEATURES, common.compute(["a car"], ["a car"])[0], strict=True))
    for kind in ("pairs", "threes", "fours"):
        assert found[f"cosine_{kind}"] == pytest.approx(1)


def read(text: str) -> list[str]:
    return tokenize(text[:1024])[:64]


def grams_of(words: list[str], n: int) -> collections.Counter:
    text = f" {' '.join(words)} ".encode() if words else b""
    return collections.Counter(text[i : i + n] for i in range(len(text) - n + 1))


def pairs_of(words: list[str]) -> collections.Counter:
    return collections.Counter(itertools.pairwise(words))


def longest_run(a: list[str], b: list[str]) -> int:
    runs = {tuple(b[i:j]) for i in range(len(b)) for j in range(i + 1, len(b) + 1)}
    spans = itertools.combinations(range(len(a) + 1), 2)
    return max((j - i for i, j in spans if tuple(a[i:j]) in runs), default=0)


def longest_order(a: list[str], b: list[str]) -> int:
    best = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, j in itertools.product(range(len(a)), range(len(b))):
        best[i + 1, j + 1] = max(best[i, j] + (a[i] == b[j]), best[i, j + 1], best[i + 1, j])
    return int(best[-1, -1])


class Reference:
    """The features of a pair of texts by dictionaries."""

    def __init__(self) -> None:
        self.corpus = [read(text) for text in CORPUS]
        words, vectors = WordEncoder().word_embeddings()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = dict(zip(words, vectors, strict=True))

    def idf(self, count_in, term) -> float:
        df = sum(term in count_in(words) for words in self.corpus)
        code = round(8 * math.log2(1 + df))
        return max(math.log(len(self.corpus) + 1) - code * math.log(2) / 8, 0.01)

    def cosine(self, count_in, query, question) -> float:
        a, b = count_in(query), count_in(question)
        weight = {gram: self.idf(count_in, gram) ** 2 for gram in a | b}
        norms = math.prod(sum(weight[g] * n for g, n in x.items()) for x in (a, b))
        return sum(weight[g] * n for g, n in (a & b).items()) / math.sqrt(norms) if norms else 0.0

    def similarity(self, a: str, b: str) -> float:
        if a == b:
            return 1.0
        both = a in self.vectors and b in self.vectors
        return max(0.0, float(self.vectors[a] @ self.vectors[b])) if both else 0.0

    def side(self, words, others) -> dict[str, float]:
        idfs = {word: self.idf(set, word) for word in words}
        best = {w: max((self.similarity(w, o) for o in others), default=0) for w in idfs}
        total, unmatched = sum(idfs.values()), [word for word in idfs if word not in others]
        missing = [idf * (1 - best[word]) for word, idf in idfs.items()]
        far = [word for word in idfs if best[word] < 0.5]
        return {
            "overlap": total and 1 - sum(idfs[word] for word in unmatched) / total,
            "unmatched": max((idfs[word] for word in unmatched), default=0),
            "match": total and 1 - sum(missing) / total,
            "miss": max(missing, default=0),
            "far": max((idfs[word] for word in far), default=0),
            "missing": sum(missing),
            "numbers": sum(any(c.isdigit() for c in word) for word in unmatched),
            "far_words": len(far),
            "idf": total,
            "length": len(words),
        }

    def pair(self, query: str, question: str) -> dict[str, float]:
        a, b = read(query), read(question)
        sides = self.side(a, b), self.side(b, a)
        negations = [sum(word in ("not", "t") for word in words) for words in (a, b)]
        asking = {"what", "how", "is"}
        return {
            **{f"{name}_sum": sides[0][name] + sides[1][name] for name in sides[0]},
            **{f"{name}_difference": abs(sides[0][name] - sides[1][name]) for name in sides[0]},
            "cosine_words": self.cosine(collections.Counter, a, b),
            "cosine_pairs": self.cosine(pairs_of, a, b),
            "cosine_threes": self.cosine(lambda words: grams_of(words, 3), a, b),
            "cosine_fours": self.cosine(lambda words: grams_of(words, 4), a, b),
            "negations": abs(negations[0] - negations[1]),
            "question_words": len(({*a} ^ {*b}) & asking),
            "first_word": float(bool(a and b) and a[0] == b[0]),
            "last_word": float(bool(a and b) and a[-1] == b[-1]),
            "common_run": longest_run(a, b) / max(len(a), len(b), 1),
            "common_order": longest_order(a, b) / max(len(a), len(b), 1),
        }


def test_equals_the_reference(extractor):
    reference = Reference()
    queries = [*CORPUS, "Is a car not an Automobile of 2016 or Zürich?"]
    pairs = [*itertools.product(queries, CORPUS)]
    rows = extractor.compute(*zip(*pairs, strict=True))
    for (query, text), row in zip(pairs, rows, strict=True):
        found = dict(zip(FEATURES, row.tolist(), strict=True))
        expected = reference.pair(query, text)
        ours = {name: found[name] for name in expected}
        assert ours == pytest.approx(expected, abs=0.04), (query, text)
    assert len(expected) + 1 == len(FEATURES)  # and the weights of words


def test_word_weights_are_those_of_the_words_in_which_texts_differ(extractor):
    texts = ["What is the price of a car?", "What is the cost of a car?"]
    rows = np.empty((2, MOST), np.int32)
    found = extractor.compute(texts, texts[::-1], rows)
    assert (rows >= 0).sum(axis=1).tolist() == [3, 3]  # price, cost, and their pair
    assert {*rows[0].tolist()} == {*rows[1].tolist()}  # both orders have the same
    total = WEIGHTS[rows[0][rows[0] >= 0]].sum()
    np.testing.assert_allclose(found[:, FEATURES.index("word_weights")], total, rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.text(max_size=60), st.randoms())
def test_any_texts_have_features_that_do_not_depend_on_order(extractor, texts, query, random):
    rows = extractor.compute([query] * len(texts), texts)
    assert np.isfinite(rows).all()
    swapped = extractor.compute(texts, [query] * len(texts))
    np.testing.assert_allclose(swapped, rows, rtol=1e-6, atol=1e-7)
    order = random.sample(range(len(texts)), len(texts))
    again = extractor.compute([query] * len(texts), [texts[i] for i in order])
    assert (again == rows[order]).all()


def test_many_pairs_have_the_features_of_each_alone(extractor):
    pairs = [*itertools.product(CORPUS, CORPUS)] * 60  # so many that threads share them
    rows = extractor.compute(*zip(*pairs, strict=True))
    for place in range(0, len(pairs), 997):
        (one, other) = pairs[place]
        assert (extractor.compute([one], [other]) == rows[place]).all()


def test_texts_of_any_length_have_features():
    long = ["x" * 10**6, "word " * 10**5, "é" * 5000, "a1 " * 2000, ""]
    extractor = FeatureExtractor(WordEncoder(), Frequencies.count(CORPUS), zero_weights())
    rows = extractor.compute(long, long)
    assert np.isfinite(rows).all()
    assert rows[1, FEATURES.index("length_sum")] == 2 * 64
    assert not rows[4].any()
    assert Frequencies.count([]).weights(["price"]).tolist() == [np.float32(0.01)]


@pytest.mark.parametrize(
    ("query", "question", "turned"),
    [
        ("paid on 03/04/2024", "paid on 04/03/2024", 1),
        ("order AB-12-34", "order AB-34-12", 1),
        ("10.0.12", "12.0.10", 3),
        ("top 10 phones of 2016", "2016: top 10 phones", 0),
        ("room 12, floor 3", "floor 3, room 12", 0),
        ("1 2 1", "2 1 2", 0),
    ],
)
def test_turned_numbers_count_as_those_that_the_other_text_lacks(
    extractor, query, question, turned
):
    (features,) = extractor.compute([query], [question])
    assert features[FEATURES.index("numbers_sum")] == 2 * turned
    assert features[FEATURES.index("numbers_difference")] == 0
