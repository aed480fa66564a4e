import pytest

from qpr_jax.evaluation.answers import kinds_of
from qpr_jax.text.differences import (
    Differences,
    base,
    denied,
    find_differences,
    mark_words,
    missing_words,
    names,
    names_differ,
    negates,
    numbers,
    numbers_differ,
    numbers_moved,
)
from qpr_jax.text.tokenizer import tokenize

FOUND = {
    numbers: [
        ("How do I learn Python?", set()),
        ("Is the iPhone 6s better than the 7?", {"6", "7"}),
        ("10,000 or 1,00,000, 2,500.50 or 1,000, say?", {"10000", "100000", "2500.5", "1000"}),
        ("25,00 EUR, 8,40; seats 1,2 or 10,20,30", {"25", "8.4", "1", "2", "10", "20", "30"}),
        ("24/7, 1,2,3 and 007", {"24", "7", "1", "2", "3"}),
        ("2.0 is the 2nd of two", {"2"}),
        ("Which one of twenty thousand?", {"20", "1000"}),
        ("\u0968\u0966\u0967\u096c and \uff13", {"2016", "3"}),  # Devanagari, full-width digits
        ("0 and 0.0", {"0"}),
        ("9" * 5000, {"9" * 5000}),
    ],
    names: [
        ("How is life in New Delhi?", {"new", "delhi"}),
        ("Delhi is large. Mumbai is larger than Pune?", {"pune"}),
        ("Which IITs and U.S. schools, and how is India's NIT?", {"iit", "us", "india", "nit"}),
        ("IIT or iPhone?", {"iit", "iphone"}),
        ("Who is Roman, not John F Kennedy?", {"roman", "john", "f", "kennedy"}),
        ("Apple: Can I learn C? What can I do if I'm old? WHY?", {"c"}),
        ("How Can I Learn Python In A Week?", set()),
        ("How to Learn Python Online in India Within Weeks", set()),
        ("What Is The Best IIT Of All?", {"iit"}),
        ("Who is Barack Hussein Obama?", {"barack", "hussein", "obama"}),
        ("HOW CAN I LEARN PYTHON?", set()),
        ("USA?", {"usa"}),
        ("Is it \u201cPoke\u0301mon\u201d?", {"pok\xe9mon"}),  # an accent of its own
        ("how do i live in delhi?", set()),
        ("", set()),
    ],
}


def test_numbers_and_names():
    for function, cases in FOUND.items():
        for text, found in cases:
            assert function(text) == found


DIFFER = {
    numbers_differ: [
        ("Who won in 2016?", "Who won in 2012?", True),
        ("Is 2 plus 3 five?", "Is 3 plus 2 five?", False),
        ("How do I lose 5 kg in 1 week?", "How do I lose five kg in one week?", False),
        ("Who is number 1?", "Who is number two?", True),
        ("Which one is better?", "Which is better?", False),
    ],
    names_differ: [
        ("Is it cold in Delhi?", "Is it cold in Pune?", True),
        ("Is it cold in Delhi?", "is it cold in delhi?", False),
        ("Is India's capital large?", "How large is the capital of India?", False),
        ("Is the U.S. large?", "Is the US large?", False),
        ("How Large Is The Town Of Delhi?", "How large is Delhi?", False),
    ],
}


def test_what_differs():
    for function, cases in DIFFER.items():
        for first, second, differ in cases:
            assert function(first, second) is function(second, first) is differ


NEGATIONS = """
Why do I never sleep?
Why is water not blue?
Why don't cats swim?
Why don\u2019t cats swim?
Why dont cats swim?
Can't sleep, what can I do?
Don't eat that?
Why can't I?
What can one never learn?
Can I live without food?
Are there no books?
NOBODY knows?
What is a non-Newtonian fluid?
Why not?
"""
OTHERS = """
Why is water blue?
Do you know nothingness, Norway and knots?
Isn't it better to walk?
Python: isn't it slow?
I read a lot. Doesn't everyone?
Don't you think so?
It is good, isn't it?
Is it good or not?
Would you go? Why or why not?
Is it not only good?
Which is the no. 1 school?
"""


def test_what_negates():
    for texts, expected in ((NEGATIONS, True), (OTHERS, False)):
        assert {negates(text) for text in texts.strip().split("\n")} == {expected}
    assert not negates("")


def test_kinds_of_two_questions():
    for query, other, found in [
        ("How do I learn to cook rice?", "How can I learn to cook rice?", ""),
        (
            "Who won in 2016?",
            "Who has not won in Delhi in 2012?",
            "numbers negation names shorter short",
        ),
        ("Is red or blue better?", "Is blue or red better?", "order"),
        ("Is red or blue better?", "is red, or blue better", "same"),
        ("is it it so or so", "is is it so or so", ""),
        ("word " * 21, "word", "longer long"),
        ("word " * 20, "word " * 14, ""),
        ("word " * 5, "word " * 4, ""),
        ("word " * 9, "word " * 6, "longer"),
        ("word " * 6, "word " * 9, "shorter"),
        ("a b", "?", "longer short"),
        ("?", "!", "same short"),
    ]:
        assert kinds_of(query, other) == found.split()


def test_words_that_differ_are_marked():
    text = 'Is "Python" better, or (C++)?  Yes and/or no way!'
    pieces = mark_words(text, "is python or c")
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, differs in pieces if differs] == ["better", "Yes and", "no way"]
    assert mark_words("Is it?", "it is") == [("Is it?", False)]
    assert mark_words("", "it is") == []
    assert mark_words("天気は", "天気") == [("天気", False), ("は", True)]
    assert missing_words("Is it red?", "how red is IT, how") == ["how"]


def test_long_texts_take_linear_time():
    for unit in ["?", "? ", "1,222", ",22", "a.", "don't ", "'", "no.", " ", "!x"]:
        text = "x" + unit * 20_000
        for function in (numbers, negates, names):
            function(text)
        assert "".join(piece for piece, _ in mark_words(text, "a")) == text


def test_words_numbers_and_negation():
    texts = "How can I learn Rust in 2015?", "how not learn in 2016"
    found = find_differences(*texts)
    assert (found.text_words, found.other_words) == (("can", "i", "rust", "2015"), ("not", "2016"))
    assert (found.text_numbers, found.other_numbers) == (("2015",), ("2016",))
    assert found.negation
    assert find_differences("how can I", "how not").text_words == ("can", "i")
    assert find_differences("one 1", "one").text_numbers == ()
    assert find_differences("Rice?", "rice") == find_differences("", "") == Differences()


def test_forms_of_a_word_have_one_base():
    for forms in (
        "stop stops stopped stopping",
        "close closes closed closing",
        "deny denies denied denying",
        "lower lowers lowered lowering",
        "pass passes passed passing",
        "add adds added adding",
        "easy easier easiest easily",
        "hot hotter hottest",
    ):
        assert len({*map(base, forms.split())}) == 1
    others = ["bus", "his", "red", "need", "bring", "here", "her", "under"]
    others += ["early", "ear", "apply", "app"]
    assert len({*map(base, others)}) == len(others)


def test_what_is_denied():
    text = (
        "It isn't open, can\u2019t be closed, is never locked, has no end. Why don't you like it?"
    )
    assert denied(text) == {*map(base, ("open", "closed", "locked", "end", "like"))}


@pytest.mark.parametrize(
    ("first", "second", "moved"),
    [
        ("from 3 to 5", "from 5 to 3", True),
        ("convert 3 km to 5 miles", "convert 5 km to 3 miles", True),
        ("room 3 desk 5", "room 5 desk 3", True),
        ("on 3/4", "on 4/3", True),
        ("a 3.5 mm cable", "a 5.3 mm cable", True),
        ("12 3 3", "3 12 3", True),
        ("E05 mixer 500 help", "mixer 500 shows E05", False),
        ("Ordered 3 days ago, paid 20 EUR", "Paid 20 EUR, and ordered 3 days ago", False),
        ("2 beds and 3 chairs", "3 chairs and 2 beds", False),
        ("error 7 in room 12", "room 12: error 7", False),
        ("3 km, 5 miles", "3 km, 5 miles", False),
        ("3 km", "5 miles", False),
        ("", "3", False),
    ],
)
def test_a_number_with_its_word_has_not_moved(first, second, moved):
    found = [tokenize(first), tokenize(second)]
    assert numbers_moved(*found, {"to", "from", "on", "and"}) is moved
    assert numbers_moved(*found[::-1], {"to", "from", "on", "and"}) is moved
