import pytest

from qpr_jax.reranking.differences import Differences, find_differences
from qpr_jax.reranking.frequencies import Frequencies

FREQUENCIES = Frequencies.count(["how can i learn python", "how can i learn rust", "how is rice"])


def test_words_by_weight_numbers_and_negation():
    found = find_differences("How can I learn Rust in 2015?", "how not learn in 2016", FREQUENCIES)
    assert [word for word, _ in found.text_words] == ["2015", "rust", "can", "i"]
    assert [word for word, _ in found.other_words] == ["2016", "not"]
    weights = dict(found.text_words)
    assert weights["2015"] == pytest.approx(1.386, abs=1e-3)  # log(4 / 1)
    assert weights["can"] == pytest.approx(0.288, abs=0.05)  # log(4 / 3)
    assert (found.text_numbers, found.other_numbers) == (("2015",), ("2016",))
    assert found.negation


def test_without_frequencies_words_are_in_their_order():
    found = find_differences("how can i learn rust", "how not")
    assert found.text_words == (("can", 1.0), ("i", 1.0), ("learn", 1.0), ("rust", 1.0))


def test_texts_of_the_same_words_do_not_differ():
    assert find_differences("Rice?", "rice", FREQUENCIES) == Differences()
    assert find_differences("", "") == Differences()
    assert find_differences("one 1", "one", FREQUENCIES).text_numbers == ()
