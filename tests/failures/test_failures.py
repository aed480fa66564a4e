import html.parser
import json

import numpy as np
import pytest

from qpr_jax.failures.analysis import analyze, known_paraphrases
from qpr_jax.failures.page import write_failures
from qpr_jax.index.base import Hit

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\x00 \"'`|*_[a](http://b)\u2028# <!-- {{ 7 * 7 }} $&"
SHOWN = HOSTILE.replace("\x1b", "\ufffd").replace("\x00", "\ufffd")
ESCAPED = (
    "&lt;img src=x onerror=alert(1)>\ufffd\\[31m\ufffd \"'\\`\\|\\*\\_\\[a\\](http://b) # "
    "&lt;!-- {{ 7 \\* 7 }} \\$&amp;"
)
QUESTIONS = {
    1: "How do I cook rice?",
    2: "How can I cook rice?",
    3: "How do I cook rice in 2 minutes?",
    4: "Is Rust better than C?",
    5: "Why is Rust better than C?",
    6: "Is C better than Rust?",
    7: f"this {HOSTILE} that",
    8: f"that {HOSTILE} this",
    9: "why \ud800 not?",
}
PAIRS = np.array([[1, 2], [2, 3], [4, 5], [7, 8]])  # the query first
NEAREST = {
    "good": {1: [1, 2, 3], 2: [3, 1], 4: [6, 4, 9, 5], 7: [7, 8]},
    HOSTILE: {1: [4, 3, 2], 2: [2, 1], 4: [4, 5], 7: [9, 1, 2, 3]},
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


class Page(html.parser.HTMLParser):
    """The tags and attributes, and the text of a page; wrong where tags do not close."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags += [tag, *dict(attributes)]
        self.open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def written(tmp_path):
    """Two runs at four queries: 4 is wrong in the first, 1 and 7 in the other."""
    analysis = analyze({run: search_of(run) for run in NEAREST}, QUESTIONS, PAIRS)

    def write(name, **options):
        write_failures(tmp_path / name, analysis, **options)
        return (tmp_path / name).read_text("utf-8")

    return write


def test_the_closest_paraphrase_shares_most_words():
    pairs = np.array([[7, 9], [3, 1], [1, 5], [2**62, 7]])  # known are all that pairs link
    assert known_paraphrases(pairs) == {1: [3, 5], 3: [1, 5], 7: [9, 2**62], 2**62: [7, 9]}
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


def test_the_page_shows_texts_as_they_are(written):
    text = written("a.HTML")
    page = Page(text)
    assert not {"img", "a", "script", "src", "href"} & {*page.tags}
    assert not {"\x1b", "\x00"} & {*text}
    assert page.text.count(SHOWN) >= 4
    assert "why ? not?" in page.text  # a lone surrogate
    assert f"4 test queries; good fails at 1 (0.250), {SHOWN} fails at 2 (0.500)" in page.text
    assert "Only good fails (1 of 1)" in page.text
    assert "Both fail (0 of 0)" in page.text
    assert "the paraphrase at place 3" in page.text
    assert "another paraphrase at place 2 How do I cook rice in 2 minutes?" in page.text
    assert "no known paraphrase among 20" in page.text
    assert f"Only {SHOWN} fails (1 of 2)" in Page(written("b.html", examples=1)).text
    assert "article" not in Page(written("c.html", examples=0)).tags


def test_markdown_shows_texts_as_they_are(written):
    text = written("a.md")
    assert not {"<", "\x1b", "\x00"} & {*text}
    assert text.count(ESCAPED) >= 4
    assert "| Word order | 1 | 0.000 (0) | 1.000 (1) | +1.000 |\n" in text
    assert "| Numbers | 0 | - (0) | - (0) | - |\n" in text
    assert "| All | 1.000 (1) | 1.000 (2) |\n" in text
    assert (
        "#### Only good fails (1 of 1)\n\n"
        "- query: Is Rust better than C?\n"
        "  - paraphrase: **Why** is Rust better than C?\n"
        "  - good (order): wrong, 0.100: Is C better than Rust?; the paraphrase at place 3\n"
        f"  - {ESCAPED}: right, 0.200: **Why** is Rust better than C?\n"
    ) in text


def test_json_has_all_that_fails(written):
    value = json.loads(written("a.json", examples=0))
    assert (value["runs"], value["split"]) == (["good", HOSTILE], "test")
    assert value["by_query"][0] == {"group": "all", "queries": 4, "failing": [1, 2]}
    assert value["by_mistake"][0] == {"group": "all", "failing": [1, 2]}
    assert [case["id"] for case in value["failing"]] == [1, 4, 7]
    example, second = value["failing"][1], {"id": 5, "question": "Why is Rust better than C?"}
    first = {"id": 6, "question": "Is C better than Rust?", "distance": 0.1}
    wrong = {"failed": True, "place": 3, "mistake": ["order"], "first": first}
    found = second | {"distance": 0.2}
    right = {"failed": False, "place": 1, "mistake": None, "first": found, "paraphrase": found}
    good, bad = example.pop("answers")
    assert good.items() >= (wrong | {"paraphrase": second | {"distance": 0.4}}).items()
    assert bad.items() >= right.items()
    paraphrase = {"paraphrase_id": 5, "paraphrase": second["question"], "groups": []}
    assert example == {"id": 4, "question": "Is Rust better than C?"} | paraphrase


def test_one_run_is_not_compared(tmp_path):
    words = {"how", "do", "i", "cook", "rice", "can", "is", "rust", "better", "than", "c"}
    searches = {"good": search_of("good")}
    one_run = analyze(searches, QUESTIONS, PAIRS, split="validation", vocabulary=words)
    write_failures(tmp_path / "a.html", one_run)
    page = Page((tmp_path / "a.html").read_text("utf-8"))
    assert "4 validation queries; good fails at 1 (0.250)." in page.text
    assert not {"Side by side", "difference"} & {*page.text.split("\n")}
    assert "Unseen words" in page.text
