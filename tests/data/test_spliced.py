"""Questions made of others: only real runs of three words, none twice, the same for a seed."""

import itertools

from qpr_jax.data.spliced import REPLACED, replace_words, splice_questions


def _runs(question):
    words = question.lower().split()
    return set(itertools.pairwise(words)) | set(zip(words, words[1:], words[2:], strict=False))


def _questions():
    verbs, things = ("bake", "buy", "slice", "store"), ("bread", "rye bread", "a cake", "cheese")
    return [
        f"{start} {verb} {thing} {end}"
        for start, end in (("How do I", "at home?"), ("why would you", "in the Summer"))
        for verb, thing in itertools.product(verbs, things)
    ] + ["", "one", "two words"]


def test_runs_of_three_words_and_both_ends_are_those_of_real_questions():
    real = _questions()
    made = splice_questions(real, 20, accept=lambda text: text not in real)
    assert len(made) == len(set(made)) == 20
    known = set().union(*map(_runs, real))
    for question in made:
        assert question not in real
        assert _runs(question) <= known
        assert any(q.split()[:2] == question.split()[:2] for q in real if q)
        assert any(q.split()[-1:] == question.split()[-1:] for q in real if q)


def test_the_same_questions_are_made_each_time():
    first, again = (splice_questions(_questions(), 9, accept=lambda text: True) for _ in range(2))
    assert first == again


def test_words_are_the_same_in_any_case():
    made = splice_questions(["a B c d", "x b C e"], 5, accept=lambda text: True)
    assert sorted(made) == ["a B c e", "x b C d"]


def test_what_is_refused_is_left_out_and_fewer_come_where_no_more_can_be_made():
    pair = ["a b c d", "x b c e"]
    assert splice_questions(pair, 5, accept=lambda text: "x" not in text) == ["a b c e"]
    for none in ([], [""], ["a b c d"], ["a b c", "d e f"]):
        assert splice_questions(none, 5, accept=lambda text: True) == []


def test_longer_words_give_way_to_given_ones_and_marks_stay():
    made = replace_words(["how do I bake (bread)?"] * 1000, ["quagga", "okapi"])
    assert made == replace_words(["how do I bake (bread)?"] * 1000, ["quagga", "okapi"])
    fourth, last = ([text.split()[i] for text in made] for i in (3, 4))
    assert {*fourth} == {"bake", "quagga", "okapi"}
    assert {*last} == {"(bread)?", "(quagga)?", "(okapi)?"}
    assert all(text.startswith("how do I ") for text in made)
    assert abs(sum(word != "bake" for word in fourth) / 1000 - REPLACED) < 0.05
