"""Scores of one set of translations, and the share of known tokens."""

import numpy as np
import pytest

from qpr_jax.data.translations import Translations
from qpr_jax.evaluation.translation import Corpus, known_share, known_shares, score_set
from qpr_jax.text.vocabulary import Vocabulary

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
    assert known_share(vocabulary, ["one two", "three"]) == pytest.approx(2 / 3)
    assert known_share(vocabulary, []) == 0
    words = Translations("b.tsv", "en", "fr", ["one"], ["un"], dictionary=True)
    again = TEXTS._replace(targets=["eins eins", "eins", "zwei"])
    shares = known_shares(vocabulary, [TEXTS, again, words])
    assert shares == pytest.approx({"en": 2 / 3, "de": 3 / 5})
