"""What is equal: case, blanks, dashes, invisible characters, quotation marks, final marks."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpr_jax.text.cleaning import folded, number_key

EQUAL = [
    ["where is it?", "Where  is it ?", "where is it\u061f", "WHERE IS IT...", "where is it\u2026"],
    ["e-mail", "e\u2010mail", "e\u2011mail", "E\u2012mail", "e\u2014mail", "e\u2212mail."],
    ["password", "pass\u00adword", "pass\u200bword", "\ufeffpassword\u200e", "pass\u200dword"],
    ["r\xe9el", "\xab r\xe9el \xbb", "\xabr\xe9el\xbb", "\u201er\xe9el\u201c", "\xbbr\xe9el\xab"],
    ["real", "\u2018real\u2019", "'real'", '"real"', "\u201creal\u201d", '"\u2018real\u2019"'],
    ["don't", "don\u2019t", "don`t"],
    ["room 5", 'room "5"', "room \u201c5\u201d", "ROOM \uff15"],
    ["\u5f7c\u306e\u672c", "\u5f7c\u306e\u300c\u672c\u300d\u3002", "\u5f7c\u306e\u672c\uff1f"],
    ["\u0916\u0941\u0932\u093e \u0939\u0948", "\u0916\u0941\u0932\u093e \u0939\u0948\u0964"],
    ["\u0532\u0561\u0580\u0587", "\u0532\u0561\u0580\u0587\u0589"],  # Armenian
    ["\u1230\u120b\u121d", "\u1230\u120b\u121d\u1362"],  # Ethiopic
    ["\u10d3\u10d0 5", "\u10d3\u10d0 \u201e5\u201c;"],
    ["\xbfya est\xe1", "ya est\xe1?", "\xa1Ya est\xe1!"],
    ["stra\xdfe", "STRASSE", "Stra\xdfe"],
    ["co2", "CO\u2082", "co2."],
    ["10^6", "10\u2076"],
    ["2^-32", "2\u207b\xb3\xb2"],
    ["3 1/2", "3\xbd"],
    ["-5", "\u22125", "\u20135"],
    ["5%", "\uff15\uff05", "5% ?"],
    ["\u2764", "\u2764\ufe0f"],
]
DIFFERENT = [
    ["C", "C++", "C#", "C--", "C/C", ".C"],
    ["5", "-5", "5%", "$5", "5!", '5"', "5'", "+5", "<5"],
    ["10\u2076", "106", "10\u2086", "10\u2465", "10.6", "10-6"],
    ["2\xb3\xb2", "232", "2\xb3 2", "23\xb2"],
    ["3\xbd", "31/2", "3", "\xbd"],
    ["f(x)", "f'(x)", 'f"(x)'],
    ["is it", 'is "" it', "is '' it", "is \u201c it"],
    ["x\u200d\u2764 \U0001f468\u200d\U0001f467", "\U0001f468\U0001f467"],
    ["\U0001f3f4\U000e0067\U000e007f", "\U0001f3f4\U000e0073\U000e007f", "\U0001f3f4"],
    ["\u0646\u0627\u0645\u0647\u200c\u0627\u06cc", "\u0646\u0627\u0645\u0647\u0627\u06cc"],
    ["d\xf3nde", "donde"],
    ["what is .net", "what is net", "what is a.net"],
    ["what is @", "what is &", "what is \xa7", "what is"],
    ["email", "e-mail", "e mail"],
]


def test_texts_of_a_group_are_equal():
    for group in EQUAL:
        assert {folded(text) for text in group} == {folded(group[0])}
    for first, second in itertools.combinations(EQUAL, 2):
        assert folded(first[0]) != folded(second[0])


@pytest.mark.parametrize("group", DIFFERENT)
def test_what_carries_meaning_is_kept(group):
    assert len({folded(text) for text in group}) == len(group)


PIECES = [
    *itertools.chain(*EQUAL, *DIFFERENT),
    *"\"'?!.,-\xab\xbb\u201c\u201d\u300c\u300d\u3002 5a\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join) | st.text(max_size=20))
def test_a_folded_text_stays_as_it_is(text):
    assert folded(folded(text)) == folded(text)
    assert bool(folded(text)) == bool(text.strip()) or not text.isascii()


@given(
    st.lists(st.sampled_from(["way", "5", "\u092e\u0947\u0902", "\u672c", "\xfcber"]), min_size=1)
)
def test_marks_and_blanks_do_not_count(words):
    text = " ".join(words)
    for end in ("?", " ?", "\u3002", "\u0964", "\u061f", "...", "\u2026", "\u200b"):
        assert folded(f" {text.upper()}{end}") == folded("  ".join(words))
        assert folded(f"\u201c{text}\u201d{end}") == folded(f"\xab {text} \xbb") == folded(text)


def test_the_order_of_numbers_counts():
    texts = ["pay 3 for 20", "pay 20 for 3", "pay three for twenty", "pay 3 for 3", "pay -3 for 20"]
    keys = [number_key(folded(text)) for text in texts]
    assert keys[0] == keys[2]
    assert len({*keys}) == 4
    assert number_key("2 (two) days") == number_key("two days")


@pytest.mark.parametrize(
    "text", ['"', "'\"", "? ", "\xaba ", '"a ', "5!", "\xb2", "\u200d", "\u0301"]
)
def test_long_texts_take_linear_time(text):
    start = time.monotonic()
    folded(text * 100_000)
    assert time.monotonic() - start < 5
