import re
import time

from hypothesis import given
from hypothesis import strategies as st

from qpr_jax.text.tokenizer import canonical, join_codes, normalized_text, tokenize


def test_words():
    for text, words in [
        ("How do I learn C++ in 30 days?", ["how", "do", "i", "learn", "c", "in", "30", "days"]),
        ("Don't e-mail snake_case", ["don", "t", "e", "mail", "snake_case"]),
        ("", []),
        (" \t\n", []),
        ("?!", []),
        ("Café naïve", ["café", "naïve"]),
        ("Cafe\u0301", ["café"]),
        ("ﬁre \uff37\uff49\uff44\uff45 ²", ["fire", "wide", "2"]),
        ("ÉCOLE STRASSE Straße", ["école", "strasse", "straße"]),
        ("İs it", ["i\u0307s", "it"]),
        ("योग वासिष्ठ", ["योग", "वासिष्ठ"]),
        ("ਬੱਬਰ ਸ਼ੇਰ", ["ਬੱਬਰ", "ਸ਼ੇਰ"]),
        ("مَرْحَبًا، كيف؟", ["مَرْحَبًا", "كيف"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
        ("你好 世界", ["你好", "世界"]),
        ("nul\0nul", ["nul", "nul"]),
        ("lone \ud800surrogate\udfff é", ["lone", "surrogate", "é"]),
        ("😀 ❤️ 👨\u200d👩", []),
        ("1️⃣ first", ["1", "first"]),
        ("\u0301 alone", ["alone"]),
    ]:
        assert tokenize(text) == words


# Texts of one line have one list of words, and no two lines have the same.
SIGNS = [
    ["How do I learn C?", "how do I learn c"],
    ["How do I learn C++?", "how do i learn C ++", "How do I learn C\uff0b\uff0b"],
    ["How do I learn C#?"],
    ["Is 5 safe?", "Is 5. safe", "Is 5 \u2013 safe?"],
    ["Is -5 safe?", "Is - 5 safe"],
    ["Is +5 safe?"],
    ["5% off", "5 % off"],
    ["$5 off", "$ 5 off"],
    ["\u20ac5 off"],
    ["5 off", "5, off"],
    ["x < y"],
    ["x > y", "x>y"],
    ["x \u2264 y"],
    ["x y", "x. y"],
    ["a/b"],
    ["a-b", "a b", "a.b", "a, b"],
    ["2019-2020", "2019 2020"],
    ["What is .NET?"],
    ["What is net?", "What is net.", "What is ...net?", "What is net??"],
    ["do && this"],
    ["do || this"],
    ["do ?? this"],
    ["do this", "do & this", "do | this", "do - this"],
    ["Is it \u2705?"],
    ["Is it \u274c?"],
    ["I \u2764 it", "I \u2764\ufe0f it"],
    ["1.5", "1,5"],
]


def test_signs_tell_texts_apart():
    lines = [{tuple(tokenize(text, signs=True)) for text in texts} for texts in SIGNS]
    assert [len(words) for words in lines] == [1] * len(SIGNS)
    assert len(set.union(*lines)) == len(SIGNS)


@given(st.text())
def test_without_signs_the_words_are_the_same(text):
    words = [word for word in tokenize(text, signs=True) if re.match(r"\w", word)]
    assert words == tokenize(text)


def test_odd_huge_and_long_texts_take_linear_time():
    every = "".join(map(chr, range(0x110000)))
    assert len(tokenize(every)) > 500
    assert tokenize("x" * 1_000_000) == ["x" * 1_000_000]
    assert len(tokenize("é " * 500_000)) == 500_000
    for marks in ("\u0315\u0300", "\u0300\uff9e"):  # a megabyte of them takes no minutes
        start = time.process_time()
        assert len(tokenize("e" + marks * 250_000 + " end")) == 2
        assert time.process_time() - start < 5
    for unit in ["+", "+ ", "- ", "?? ", " .", "\u2705", "&", "#a", "<5"]:
        for end in ("x", "\u00e9"):
            assert tokenize(unit * 30_000 + " " + end, signs=True)[-1] == end
    for unit in ["x", "a-", "a:", "www.", "://", "a://", "@", "/ ", "\\"]:
        assert "c_d" in join_codes(unit * 200_000 + " c-d", lambda word: False)


def test_thirty_marks_on_a_letter_are_kept():
    text = "x" + "\u0315\u0300" * 15
    assert tokenize(text + " é" * 600)[0] == tokenize(text)[0]
    assert len(tokenize(text)[0]) == 31


def test_codes_are_joined():
    known = {*tokenize("my phone won't start, well known and or up to date www org a b")}
    for text, joined in [
        ("My Phone-G991B-DS won't start.", "My phone_g991b_ds won't start."),
        ("well-known and/or up-to-date?", "well-known and/or up-to-date?"),
        ("see https://www.known.org/a?b=5%20&c#d,", "see https_www_known_org_a_b_5_20_c_d,"),
        ("www.known.org (known@known.org)", "www_known_org (known_known_org)"),
        ("a - b, 5-10, x.y.z", "a - b, 5_10, x_y_z"),
        ("C:\\temp\\log.txt", "c_temp_log_txt"),
        ("Größe-Ä9", "größe_ä9"),
        ("", ""),
    ]:
        assert join_codes(text, known.__contains__) == joined


def test_normalized_text():
    texts = ["How  do I?", "\uff28ow, do \uff29", "?", " ?? ", "😀", "", "  ", "\uff1f"]
    normalized = ["how do i", "how do i", "?", "??", "😀", "", "", "?"]
    assert [*map(normalized_text, texts)] == normalized


def test_texts_that_differ_in_case_blanks_and_final_marks_are_compared_as_one():
    for text in ("What is .NET?", " what  is\t.net ?!", "WHAT IS .Net "):
        assert canonical(text) == "what is .net"
    assert canonical(".net or C") != canonical("net or C")  # a dot before a name says something
    assert [canonical("?!"), canonical("")] == ["?!", ""]
