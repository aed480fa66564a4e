import numpy as np
import pytest

from qpr_jax.data.parallel_sentences import Translations
from qpr_jax.evaluation.retrieval import Corpus, known_shares, score_retrieval, score_set
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.text.vocabulary import Vocabulary


def unit(rng, *shape):
    rows = rng.normal(size=shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_against_plain_loops():
    rng = np.random.default_rng(1)
    source = unit(rng, 60, 5)
    target = source + 0.4 * unit(rng, 60, 5)
    source[40:] = source[rng.integers(40, size=20)]
    sources = [normalized_text(f"Text {i}") for i in rng.integers(40, size=60)]
    targets = [normalized_text(f"Satz {i}.") for i in rng.integers(50, size=60)]

    def accuracy(queries, candidates):
        right = 0
        for i, query in enumerate(queries):
            distances = [float(((query - c).astype(float) ** 2).sum()) for c in candidates]
            found = distances.index(min(distances))
            right += sources[found] == sources[i] or targets[found] == targets[i]
        return pytest.approx(right / len(queries))

    expected = {"to_source": accuracy(target, source), "to_target": accuracy(source, target)}
    vectors = iter([source, target])
    texts = Translations("a.tsv", "en", "de", sources, targets)
    found = score_set(texts, lambda _: next(vectors))
    assert found == expected | {"language": "de", "name": "a.tsv", "sentences": 60}
    assert 0.1 < found["to_source"] < 0.9


def test_retrieval_against_a_sort_of_all_distances():
    rng = np.random.default_rng(2)
    answers, corpus = unit(rng, 40, 6), unit(rng, 300, 6).astype(np.float16)
    queries = answers + 0.75 * unit(rng, 40, 6)
    queries[30:] = answers[30:] = corpus[30:40]  # of equal distances, those of the corpus first
    answer_texts = [f"answer {i}" for i in rng.integers(30, size=40)]
    corpus_texts = [f"Answer {i}!" for i in rng.integers(3000, size=300)]
    found = score_retrieval(queries, answers, answer_texts, Corpus(corpus_texts, corpus))
    together, ranks = np.concatenate([corpus, answers]), []
    texts = [normalized_text(text) for text in [*corpus_texts, *answer_texts]]
    for query, text in zip(queries, texts[300:], strict=True):
        order = np.argsort(((query - together).astype(float) ** 2).sum(axis=1), kind="stable")
        right = [texts[j] == text for j in order[:20]]
        ranks.append(right.index(True) + 1 if any(right) else np.inf)
    places = np.array(ranks)
    expected = [np.mean(places == 1), np.mean(places <= 10), np.mean(1 / places)]
    assert [found[name] for name in ("hits@1", "hits@10", "mrr@20")] == pytest.approx(expected)
    assert 0.1 < found["hits@1"] < found["hits@10"] < 1


TEXTS = Translations("a.tsv", "en", "de", ["one", "two", "three"], ["eins", "zwei", "drei"])
PLACES = {"one": 0, "eins": 0, "two": 1, "zwei": 1, "three": 2, "drei": 0}


def encode(texts):
    return np.eye(3, dtype=np.float32)[[PLACES[text] for text in texts]]


def test_a_set_is_scored_in_both_directions_and_among_a_corpus():
    corpus = Corpus(["zero", "One!"], np.float32([[-1, 0, 0], [1, 0, 0]]))
    found = score_set(TEXTS, encode, teacher=encode, corpus=corpus)
    assert {name: found.pop(name) for name in ("language", "name", "sentences")} == {
        "language": "de",
        "name": "a.tsv",
        "sentences": 3,
    }
    # "drei" is at the place of "one", which two candidates of the corpus have.
    retrieval = found.pop("retrieval")
    assert retrieval["hits@1"] == pytest.approx(2 / 3)
    assert found == pytest.approx(
        {"to_source": 2 / 3, "to_target": 2 / 3, "cosine_source": 1.0, "cosine_target": 2 / 3}
    )
    assert not {"retrieval", "cosine_source"} & score_set(TEXTS, encode).keys()


def test_known_tokens_are_counted_by_language_without_dictionaries():
    vocabulary = Vocabulary(("one", "two", "eins"), bins=5, subwords=True)
    words = Translations("b.tsv", "en", "fr", ["one"], ["un"], dictionary=True)
    again = TEXTS._replace(targets=["eins eins", "eins", "zwei"])
    shares = known_shares(vocabulary, [TEXTS, again, words])
    assert shares == pytest.approx({"en": 2 / 3, "de": 3 / 5})
