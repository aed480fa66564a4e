"""Lexicons learned from translations, and questions made of others."""

import itertools

import numpy as np
import pytest

from qpr_jax.data.words import (
    REPLACED,
    Lexicon,
    gloss,
    learn_lexicon,
    replace_words,
    splice_questions,
)
from qpr_jax.text.tokenizer import tokenize
from tests.made_up_language import made_up_pairs, translate

GLUED = {"a", "an", "my", "the", "this"}


@pytest.fixture(scope="module")
def pairs():
    return made_up_pairs(800)


@pytest.fixture(scope="module")
def lexicon(pairs):
    return learn_lexicon(*zip(*pairs, strict=True))


def counted(texts):
    words, counts = np.unique([w for text in texts for w in tokenize(text)], return_counts=True)
    return dict(zip(words.tolist(), counts.tolist(), strict=True))


def test_it_learns_the_dictionary_in_both_directions(pairs, lexicon):
    """The words that are often enough there, but for those that are glued to others."""
    english, other = (counted(texts) for texts in zip(*pairs, strict=True))
    frequent = [w for w, n in english.items() if n >= 5 and w not in GLUED]
    # Those that stand alone in the other language, too.
    free = [word for word in frequent if other.get(translate(word), 0) >= 5]
    assert len(free) > 150
    right = [lexicon.likely(word, most=1) == translate(word) for word in free]
    assert np.mean(right) > 0.85
    back = learn_lexicon(*reversed(list(zip(*pairs, strict=True))))
    assert back.likely(translate("how"), most=1) == "how"
    for places, probabilities in lexicon.of.values():
        assert probabilities.sum() == pytest.approx(1)
        assert (probabilities > 0).all()
        assert len(np.unique(places)) == len(places)


def test_model_1_by_hand():
    """Two iterations' worth of evidence decide which of two words is which."""
    found = learn_lexicon(["house", "the house", "the"], ["Haus", "das Haus", "das"])
    assert (found.likely("house"), found.likely("the")) == ("haus", "das")
    assert found.targets == ["haus", "das"]
    places, probabilities = found.of["house"]
    assert probabilities[places.tolist().index(0)] > 0.9
    text = " ".join(f"w{i}" for i in range(1000))
    # Of equal sentences each word is as likely as the others: none is likely.
    assert learn_lexicon([text] * 3, [text] * 3).of == {}


def test_likely_translations_are_at_least_half_as_likely_as_the_first():
    lexicon = Lexicon(["x", "y", "z"], {"w": (np.arange(3), np.array([0.3, 0.5, 0.2]))})
    assert [lexicon.likely("w", most=most) for most in (1, 2, 3)] == ["y", "y x", "y x"]
    for sources, targets in (([], []), ([""], ["a"]), (["a"], ["?!"])):
        found = learn_lexicon(sources, targets)
        assert found == Lexicon([], {})
        assert gloss("any text", found, np.random.default_rng(0)) == ("any text", 0)


def test_glosses_follow_the_probabilities_and_other_words_stay(pairs, lexicon):
    def glosses(seed):
        rng = np.random.default_rng(seed)
        return [gloss(text, lexicon, rng) for text, _ in pairs[:200]]

    assert glosses(1) == glosses(1) != glosses(2)
    two = Lexicon(["x", "y"], {"w": (np.array([1, 0]), np.array([0.75, 0.25]))})
    rng = np.random.default_rng(0)
    words = [gloss("W", two, rng)[0] for _ in range(2000)]
    assert words.count("y") / 2000 == pytest.approx(0.75, abs=0.04)
    assert {*words} == {"x", "y"}
    house = Lexicon(["haus"], {"house": (np.array([0]), np.array([1.0]))})
    assert gloss("Paul's HOUSE, Bonn!", house, rng) == ("paul s haus bonn", 1)


def _runs(question):
    words = question.lower().split()
    return set(itertools.pairwise(words)) | set(zip(words, words[1:], words[2:], strict=False))


def test_runs_of_three_words_and_both_ends_are_those_of_real_questions():
    frames = ("How do I {} {} at home?", "why would you {} {} in the Summer")
    verbs, things = ("bake", "buy", "slice", "store"), ("bread", "rye bread", "a cake", "cheese")
    real = [frame.format(*words) for frame in frames for words in itertools.product(verbs, things)]
    real += ["", "one", "two words"]
    made, again = (splice_questions(real, 20, accept=lambda t: t not in real) for _ in range(2))
    assert made == again
    assert len(made) == len(set(made)) == 20
    known = set().union(*map(_runs, real))
    for question in made:
        assert question not in real
        assert _runs(question) <= known
        assert any(q.split()[:2] == question.split()[:2] for q in real if q)
        assert any(q.split()[-1:] == question.split()[-1:] for q in real if q)


def test_fewer_are_made_where_no_more_can_be_made():
    made = splice_questions(["a B c d", "x b C e"], 5, accept=lambda text: True)
    assert sorted(made) == ["a B c e", "x b C d"]
    made = splice_questions(["a b c d", "x b c e"], 5, accept=lambda text: "x" not in text)
    assert made == ["a b c e"]
    for none in ([], [""], ["a b c d"], ["a b c", "d e f"]):
        assert splice_questions(none, 5, accept=lambda text: True) == []


def test_longer_words_give_way_to_given_ones_and_marks_stay():
    made = replace_words(["how do I bake (bread)?"] * 1000, ["quagga", "okapi"])
    assert made == replace_words(["how do I bake (bread)?"] * 1000, ["quagga", "okapi"])
    fourth, last = ([text.split()[i] for text in made] for i in (3, 4))
    assert {*fourth} == {"bake", "quagga", "okapi"}
    assert {*last} == {"(bread)?", "(quagga)?", "(okapi)?"}
    assert abs(sum(word != "bake" for word in fourth) / 1000 - REPLACED) < 0.05
