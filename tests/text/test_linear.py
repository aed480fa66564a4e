"""The time of a text grows with its length, whatever the text repeats."""

import time

import pytest

from qpr_jax.pair_model.guards import compare_words
from qpr_jax.text.cleaning import Cleaner, folded, number_key
from qpr_jax.text.differences import find_differences
from qpr_jax.text.tokenizer import join_codes, normalized_text, plain_words, tokenize

SIGNS = " \t\n\xa0.,?!-(#+_/\"'`&<1a\u0301\u200b\U0001f600\u6f22"
PARTS = {
    "blanks and ends": (" \n", "\r\n", "\xa0\n", ". ", "; ", "a, "),
    "words": ("word ", "Ab ", "A. ", "not ", "n't ", " 'a", "\xab a", "\u201ca", "\u0915\u0940"),
    "codes": ("a-", "a-1.", "a:", "a@", "1.", "1,", "5%", "http://a"),
    "tags": ("&amp;", "<b>", "</b>", "<b ", "<a href=", "<a b=c", "<sup>2"),
    "scripts": ("<script>", "<style ", "<title ", "<script></script>"),
}
KINDS = [*SIGNS, *(part for parts in PARTS.values() for part in parts)]
LENGTH, MOST = 20_000, 1.5  # characters, and seconds; what is quadratic takes three and more
CLEANER = Cleaner({"hi there": 9})
READS = {
    "clean": CLEANER.clean,
    "told apart": lambda text: CLEANER.told_apart([text, f"{text}b"]),
    "of a table": lambda text: Cleaner.of([text] * 6),
    "folded": folded,
    "numbers": number_key,
    "normalized": normalized_text,
    "plain words": plain_words,
    "words": lambda text: tokenize(text, signs=True),
    "codes": lambda text: join_codes(text, lambda word: False),
    "guards": lambda text: compare_words([text], [f"{text} b"]),
    "differences": lambda text: find_differences(text, f"{text} b"),
}


@pytest.mark.parametrize("name", READS)
def test_no_text_takes_long(name):
    READS[name]("warm up")
    for kind in KINDS:
        text = f"a {kind * (LENGTH // len(kind))}b"
        began = time.process_time()
        READS[name](text)
        assert time.process_time() - began < MOST, kind
