import collections
import concurrent.futures
import itertools
import math

import numpy as np
import pytest

from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.features import FEATURES, FeatureExtractor
from qpr_jax.reranking.word_weights import BITS, weight_rows
from qpr_jax.text.tokenizer import tokenize
from tests.encoders.examples import cnn_encoder

WORDS = ("what", "is", "car", "automobile", "price", "2015", "2016")
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


class FakeEncoder:
    def word_embeddings(self):
        return WORDS, np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)


def made_weights() -> np.ndarray:
    return np.random.default_rng(3).normal(size=1 << BITS).astype(np.float32)


@pytest.fixture(scope="module")
def extractor() -> FeatureExtractor:
    return FeatureExtractor(FakeEncoder(), Statistics.build(CORPUS), made_weights())


def hits_of(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    questions = [CORPUS[i] for i in rng.integers(len(CORPUS), size=count)]
    return questions, np.sort(rng.uniform(size=count)).astype(np.float32)


def read(text: str) -> list[str]:
    return tokenize(text[:1024])[:64]


def grams_of(words: list[str], n: int) -> collections.Counter:
    text = f" {' '.join(words)} ".encode() if words else b""
    return collections.Counter(text[i : i + n] for i in range(len(text) - n + 1))


def pairs_of(words: list[str], _: int = 0) -> collections.Counter:
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
    """The features of the words and n-grams of two texts, by dictionaries."""

    def __init__(self, corpus: list[str], encoder: FakeEncoder) -> None:
        self.corpus = [read(text) for text in corpus]
        words, vectors = encoder.word_embeddings()
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        self.vectors = dict(zip(words, vectors, strict=True))

    def idf(self, count_in, gram) -> float:
        df = sum(gram in count_in(words) for words in self.corpus)
        return max(math.log((len(self.corpus) + 1) / (df + 1)), 0.01)

    def cosine(self, count_in, query, question) -> float:
        a, b = count_in(query), count_in(question)
        weight = {gram: self.idf(count_in, gram) ** 2 for gram in a | b}
        norms = math.prod(sum(weight[g] * n for g, n in x.items()) for x in (a, b))
        return sum(weight[g] * n for g, n in (a & b).items()) / math.sqrt(norms) if norms else 0.0

    def similarity(self, a: str, b: str) -> float:
        if a == b:
            return 1.0
        known = a in self.vectors and b in self.vectors
        return max(0.0, float(self.vectors[a] @ self.vectors[b])) if known else 0.0

    def one_way(self, words, others, name) -> dict[str, float]:
        idf = {word: self.idf(set, word) for word in words}
        total = sum(idf[word] for word in words)
        unmatched = [word for word in words if word not in others]
        best = [max((self.similarity(w, o) for o in others), default=0) for w in words]
        weights = [idf[word] for word in words]
        missing = [w * (1 - b) for w, b in zip(weights, best, strict=True)]
        return {
            f"overlap_{name}": total and 1 - sum(idf[word] for word in unmatched) / total,
            f"unmatched_{name}": max((idf[word] for word in unmatched), default=0),
            f"match_{name}": total and float(np.dot(weights, best)) / total,
            f"miss_{name}": max(missing, default=0),
            f"missing_{name}": sum(missing),
            f"idf_{name}": total,
            f"far_words_{name}": sum(b < 0.5 for b in best),
            f"numbers_{name}": sum(any(c.isdigit() for c in word) for word in unmatched),
        }

    def compute(self, query: str, question: str) -> dict[str, float]:
        a, b = read(query), read(question)
        mean = sum(map(len, self.corpus)) / len(self.corpus)
        bm25 = 0.0
        for word in {*a}:
            tf = b.count(word)
            norm = 1.2 * (0.25 + 0.75 * len(b) / mean)
            bm25 += self.idf(set, word) * 2.2 * tf / (tf + norm)
        return {
            "bm25": bm25,
            **self.one_way([*dict.fromkeys(a)], b, "query"),
            **self.one_way(b, a, "question"),
            "cosine_words": self.cosine(collections.Counter, a, b),
            "cosine_pairs": self.cosine(pairs_of, a, b),
            "cosine_threes": self.cosine(lambda w: grams_of(w, 3), a, b),
            "cosine_fours": self.cosine(lambda w: grams_of(w, 4), a, b),
            "negations": abs(sum(w in ("not", "t") for w in a) - sum(w in ("not", "t") for w in b)),
            "first_word": float(bool(a and b) and a[0] == b[0]),
            "last_word": float(bool(a and b) and a[-1] == b[-1]),
            "common_run": longest_run(a, b) / max(len(a), len(b), 1),
            "common_order": longest_order(a, b) / max(len(a), len(b), 1),
            "length_query": len(a),
            "length_question": len(b),
            "word_weights": made_weights()[
                weight_rows([query], [question], np.array([0, 1]))[0]
            ].sum(),
        }


def test_equals_the_reference(extractor):
    reference = Reference(CORPUS, FakeEncoder())
    queries = [*CORPUS, "Is a car not an Automobile of 2016 or Zürich?"]
    starts = np.arange(len(queries) + 1) * len(CORPUS)
    found = extractor.compute(
        queries, CORPUS * len(queries), np.zeros(starts[-1], np.float32), starts
    )
    for i, (query, question) in enumerate(itertools.product(queries, CORPUS)):
        values = dict(zip(FEATURES, found[i].tolist(), strict=True))
        for name, expected in reference.compute(query, question).items():
            # Embeddings have 8 bits a number.
            tolerance = 0.03 if name.startswith(("match", "miss")) else 1e-4
            assert values[name] == pytest.approx(expected, abs=tolerance), (name, query, question)


def test_gaps_and_ranks(extractor):
    questions, _ = hits_of(6)
    distances = np.array([0.5, 0.1, 0.3, 0.3, 0.9, 0.2], np.float32)
    found = extractor.compute(["What is the price?"], questions, distances, np.array([0, 6]))
    columns = dict(zip(FEATURES, found.T, strict=True))
    np.testing.assert_allclose(columns["distance_gap"], distances - 0.1, atol=1e-6)
    np.testing.assert_allclose(columns["distance_next"], [0.4, 0.1, 0, 0, 0, 0.1], atol=1e-6)
    np.testing.assert_array_equal(columns["distance_rank"], [4, 0, 2, 2, 5, 1])
    for name in ("bm25", "fours"):
        values = columns[name if name == "bm25" else "cosine_fours"]
        np.testing.assert_allclose(columns[f"{name}_gap"], values.max() - values)
        ranks = [(values > value).sum() for value in values]
        np.testing.assert_array_equal(columns[f"{name}_rank"], ranks)
    weights = columns["word_weights"]
    np.testing.assert_allclose(columns["word_weights_gap"], weights.max() - weights, atol=1e-6)
    both = columns["match_query"] + columns["match_question"]
    np.testing.assert_allclose(columns["match_gap"], both.max() - both)


def test_order_of_hits_and_other_queries_change_nothing(extractor):
    rng = np.random.default_rng(1)
    queries = [CORPUS[i] for i in rng.integers(len(CORPUS), size=150)]
    sizes = rng.integers(0, 8, size=len(queries))
    lists = [hits_of(int(size), seed) for seed, size in enumerate(sizes)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    questions = [text for texts, _ in lists for text in texts]
    together = extractor.compute(queries, questions, np.concatenate([d for _, d in lists]), starts)
    for i, (texts, distances) in enumerate(lists):
        order = rng.permutation(len(texts))
        shuffled = extractor.compute(
            queries[i : i + 1], [texts[j] for j in order], distances[order],
            np.array([0, len(texts)]),
        )  # fmt: skip
        np.testing.assert_array_equal(together[starts[i] : starts[i + 1]][order], shuffled)


def test_threads_and_many_hits(extractor):
    def compute(seed: int) -> np.ndarray:
        queries = CORPUS * 8 if seed % 2 else CORPUS[:1]  # the many share the kept threads
        questions, distances = hits_of(5 + 100 * seed, seed)
        starts = np.linspace(0, len(questions), len(queries) + 1).astype(int)
        return extractor.compute(queries, questions, distances, starts)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for seed, found in enumerate(pool.map(compute, range(8))):
            np.testing.assert_array_equal(found, compute(seed))


def test_statistics_are_read_live():
    statistics = Statistics.build(CORPUS)
    extractor = FeatureExtractor(FakeEncoder(), statistics, made_weights())
    inputs = (CORPUS[:1], CORPUS[1:2], np.zeros(1, np.float32), np.array([0, 1]))
    before = extractor.compute(*inputs)
    statistics.add(["automobile"] * 100)
    assert (extractor.compute(*inputs) != before).any()
    statistics.remove(["automobile"] * 100)
    np.testing.assert_array_equal(extractor.compute(*inputs), before)


def test_no_queries_and_no_hits(extractor):
    none = np.zeros(0, np.float32)
    assert extractor.compute([], [], none, np.array([0])).shape == (0, len(FEATURES))
    assert extractor.compute(["a"], [], none, np.array([0, 0])).shape == (0, len(FEATURES))


def test_words_of_encoders():
    encoder = cnn_encoder()
    words, embeddings = encoder.word_embeddings()
    assert tuple(words) == encoder.vocabulary.words
    np.testing.assert_array_equal(embeddings, encoder.embedding[1 : len(words) + 1])
