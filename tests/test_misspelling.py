import numpy as np

from benchmarks.misspelling import misspell


def test_a_word_gets_one_typo_and_all_else_stays():
    text = "How do I learn Python quickly, in a week?"
    for seed in range(50):
        made = misspell(text, np.random.default_rng(seed))
        changed = [(a, b) for a, b in zip(text.split(" "), made.split(" "), strict=True) if a != b]
        assert len(changed) == 1
        ((old, new),) = changed
        assert new[0] == old[0]
        assert abs(len(new) - len(old)) <= 1


def test_as_many_words_as_asked_if_there_are_as_many():
    text = "which languages should students learn"
    for words, expected in ((0, 0), (2, 2), (9, 5)):
        made = misspell(text, np.random.default_rng(1), words)
        differs = sum(a != b for a, b in zip(text.split(), made.split(), strict=True))
        assert differs == expected


def test_short_words_numbers_and_empty_texts_stay():
    for text in ("", "is it on", "12345 67890", "?!"):
        assert misspell(text, np.random.default_rng(0), 3) == text


def test_all_kinds_of_typos_occur_and_repeat_with_the_seed():
    made = [misspell("hello", np.random.default_rng(seed)) for seed in range(200)]
    assert made == [misspell("hello", np.random.default_rng(seed)) for seed in range(200)]
    assert {"hllo", "hlelo", "helllo", "hwllo"} <= {*made}  # drop, swap, double, neighbor
    assert {len(word) for word in made} == {4, 5, 6}
    assert misspell("größter", np.random.default_rng(2)) != "größter"


def test_only_the_kinds_asked_for():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        assert len(misspell("hearty", rng, kinds=("drop",))) == 5
        swapped = misspell("hearty", rng, kinds=("swap",))
        assert sorted(swapped) == sorted("hearty")
        assert swapped != "hearty"
