"""Rows of a log, for tests."""

import random

from tests.tables import write_table

THINGS = [f"thing{i}" for i in range(40)]
ASKED = ["what is {}", "tell me about {}", "{} explained", "do you know {}", "what does {} mean"]


def log_rows(seed=0):
    """Rows of coherent clusters, one of generic answers, repeated, undecided and single ones."""
    draws = random.Random(seed)
    rows = [(form.format(thing), f"The {thing}.") for thing in THINGS for form in ASKED]
    rows += [(f"has{a} more{a} {draws.choice(THINGS)}?", "Yes") for a in range(120)]
    rows += [(f"Is \u00e9t\u00e9 {a} warm?", "no") for a in range(30)]
    rows += draws.sample(rows, 60)
    rows += [("what is thing1", "another"), ("what is thing2?", "it"), ("What is Thing2", "it")]
    rows += [(f"single {a}", f"answer {a}") for a in range(9)]
    # Held out or not, the words of these stand in two clusters.
    rows += [(f"{thing} is what", f"other {thing}") for thing in THINGS]
    rows += [(f"{thing} again is", f"other {thing}") for thing in THINGS]
    draws.shuffle(rows)
    return rows


def write_rows(path, rows):
    return write_table(path, ("question", "answer"), rows)
