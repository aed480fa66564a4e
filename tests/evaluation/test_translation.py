import numpy as np
import pytest

from qpr_jax.data.translations import Translations
from qpr_jax.evaluation.translation import (
    Corpus,
    known_shares,
    nearest_rows,
    score_retrieval,
    score_set,
    score_translations,
)
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.text.vocabulary import Vocabulary


def floats(*rows):
    return np.array(rows, np.float32)


def unit(rng, *shape):
    rows = rng.normal(size=shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def translations(source, target, teacher=None, sources=None, targets=None):
    """The scores of vectors, with texts of their own unless some are given."""
    own = [f"text {i}" for i in range(len(source))]
    return score_translations(source, target, teacher, sources or own, targets or own)


def retrieval(queries, answers, corpus, texts=None, corpus_texts=None):
    own = [f"text {i}" for i in range(len(answers))]
    questions = corpus_texts or [f"question {i}" for i in range(len(corpus))]
    return score_retrieval(queries, answers, texts or own, Corpus(questions, corpus))


def test_cosines_worked_by_hand():
    source, target = floats([3, 0], [0, 1]), floats([1, 1], [0, 0])
    scores = translations(source, target, floats([1, 0], [0, 2]))
    assert scores["cosine_source"] == pytest.approx(1)
    assert scores["cosine_target"] == pytest.approx(0.5 / np.sqrt(2))


def test_an_encoder_that_gives_all_texts_one_vector_finds_one_right_answer():
    same = np.full((7, 3), 0.1, np.float32)
    assert translations(same, same) == {"to_source": 1 / 7, "to_target": 1 / 7}


@pytest.mark.parametrize("dimension", [1, 3, 40])
def test_of_equal_distances_the_first_row(dimension):
    rng = np.random.default_rng(dimension)
    candidates = unit(rng, 30, dimension)
    candidates[[7, 21, 29]] = candidates[3]
    np.testing.assert_array_equal(nearest_rows(candidates[[29, 7, 3]], candidates), [3] * 3)
    middle = np.zeros((1, dimension), np.float32)
    assert nearest_rows(middle, np.concatenate([middle + 1, middle - 1])).tolist() == [0]


def slow_translations(source, target, sources, targets):
    """Plain loops over all distances and all texts."""

    def accuracy(queries, candidates):
        right = 0
        for i, query in enumerate(queries):
            distances = [float(((query - c).astype(float) ** 2).sum()) for c in candidates]
            found = distances.index(min(distances))
            right += normalized_text(sources[found]) == normalized_text(
                sources[i]
            ) or normalized_text(targets[found]) == normalized_text(targets[i])
        return right / len(queries)

    return {"to_source": accuracy(target, source), "to_target": accuracy(source, target)}


def test_against_plain_loops():
    rng = np.random.default_rng(1)
    source = unit(rng, 60, 5)
    target = source + 0.4 * unit(rng, 60, 5)
    source[40:] = source[rng.integers(40, size=20)]
    sources = [f"Text {i}" for i in rng.integers(40, size=60)]
    targets = [f"Satz {i}." for i in rng.integers(50, size=60)]
    expected = slow_translations(source, target, sources, targets)
    found = translations(source, target, sources=sources, targets=targets)
    assert found == {name: pytest.approx(value) for name, value in expected.items()}
    assert 0.1 < found["to_source"] < 0.9


def test_vectors_that_are_all_equal_find_nothing_in_a_corpus():
    scores = retrieval(*(np.ones((size, 4), np.float32) for size in (3, 3, 30)))
    assert scores == {"hits@1": 0, "hits@10": 0, "mrr@20": 0}


def slow_retrieval(queries, answers, corpus, answer_texts, corpus_texts):
    together = np.concatenate([corpus, answers])
    texts = [normalized_text(text) for text in [*corpus_texts, *answer_texts]]
    ranks = []
    for i, query in enumerate(queries):
        order = np.argsort(((query - together).astype(float) ** 2).sum(axis=1), kind="stable")
        right = [texts[j] == texts[len(corpus) + i] for j in order[:20]]
        ranks.append(right.index(True) + 1 if any(right) else np.inf)
    ranks = np.array(ranks)
    return {
        "hits@1": np.mean(ranks == 1),
        "hits@10": np.mean(ranks <= 10),
        "mrr@20": np.mean(1 / ranks),
    }


def test_retrieval_against_a_sort_of_all_distances():
    rng = np.random.default_rng(2)
    answers, corpus = unit(rng, 40, 6), unit(rng, 300, 6).astype(np.float16)
    queries = answers + 0.75 * unit(rng, 40, 6)
    answer_texts = [f"answer {i}" for i in rng.integers(30, size=40)]
    corpus_texts = [f"Answer {i}!" for i in rng.integers(3000, size=300)]
    given = queries, answers, corpus, answer_texts, corpus_texts
    expected = slow_retrieval(*given)
    assert retrieval(*given) == {name: pytest.approx(x) for name, x in expected.items()}
    assert 0.1 < expected["hits@1"] < expected["hits@10"] < 1


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
