import numpy as np
import pytest

from qpr_jax.failures.analysis import analyze, known_paraphrases
from qpr_jax.index.base import Hit


def test_known_are_all_that_pairs_link():
    pairs = np.array([[7, 9], [3, 1], [1, 5], [2**62, 7]])
    assert known_paraphrases(pairs) == {1: [3, 5], 3: [1, 5], 7: [9, 2**62], 2**62: [7, 9]}


def test_the_closest_paraphrase_shares_most_words():
    others = {9: "how can i cook", 5: "how can i cook rice", 4: "RICE, how can I cook?", 3: "rice"}
    pairs = np.array([[1, other] for other in others])
    search = {"run": lambda queries, k: [[Hit(9, "", 0.0)]]}
    analysis = analyze(search, {1: "how do i cook rice", **others}, pairs)
    assert analysis.cases[0].paraphrase_id == 4


@pytest.mark.parametrize(("known", "place"), [([21], 20), ([22], 0), ([2, 21], 1)])
def test_places_beyond_twenty_do_not_count(known, place):
    nearest = [[Hit(i, "a", 0.0) for i in [*range(2, 21), 1, 21, 22]]]
    pairs = np.array([[1, other] for other in known])
    analysis = analyze({"run": lambda queries, k: nearest}, dict.fromkeys(range(30), "a"), pairs)
    assert analysis.cases[0].answers[0].place == place
