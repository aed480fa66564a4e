import numpy as np
import pytest

from qpr_jax.failures.analysis import analyze
from qpr_jax.index.base import Hit

QUESTIONS = {
    1: "How do I cook rice?",
    2: "How can I cook rice?",
    3: "How do I cook rice in 2 minutes?",
    4: "Is Rust better than C?",
    5: "Why is Rust better than C?",
    6: "Is C better than Rust?",
    7: "<script>alert(1)</script> | *what* is this & that?",
    8: "<script>alert(1)</script> | *what* is that & this?",
    9: "what [is](http://a.b) `this` \ud800 not?",
}
PAIRS = np.array([[1, 2], [2, 3], [4, 5], [7, 8]])  # the query first
NEAREST = {
    "good": {1: [1, 2, 3], 2: [3, 1], 4: [6, 4, 9, 5], 7: [7, 8]},
    "bad <b>": {1: [4, 3, 2], 2: [2, 1], 4: [4, 5], 7: [9, 1, 2, 3]},
}


def search_of(run):
    by_text = {QUESTIONS[query]: found for query, found in NEAREST[run].items()}

    def search(queries, k):
        assert k == 21
        return [
            [Hit(i, QUESTIONS[i], place / 10) for place, i in enumerate(by_text[query], 1)]
            for query in queries
        ]

    return search


@pytest.fixture
def analysis():
    """Two runs at four queries: 4 is wrong in the first, 1 and 7 in the other."""
    return analyze({run: search_of(run) for run in NEAREST}, QUESTIONS, PAIRS)


@pytest.fixture
def one_run():
    words = {"how", "do", "i", "cook", "rice", "can", "is", "rust", "better", "than", "c"}
    searches = {"good": search_of("good")}
    return analyze(searches, QUESTIONS, PAIRS, split="validation", vocabulary=words)
