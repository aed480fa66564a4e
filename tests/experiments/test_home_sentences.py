"""What a semantic cache is measured on."""

import pytest

from experiments.home_sentences import OPPOSITE, SAME, cached_and_asked, home_sentences
from qpr_jax.text.cleaning import folded

pytest.importorskip("home_assistant_intents")


def test_what_is_asked_is_new_and_only_paraphrases_have_an_answer():
    cached, asked = cached_and_asked()
    texts = [*cached, *(text for _, text, _ in asked)]
    fitted = {folded(text) for text, _ in home_sentences()[0]}
    assert len({*map(folded, texts)} - fitted) == len(texts) > 300
    meanings = {*cached.values()}
    assert all((meaning in meanings) == (kind == SAME) for kind, _, meaning in asked)
    assert all(sum(each[0] == kind for each in asked) > 20 for kind in (SAME, OPPOSITE))
    assert (cached, asked) == cached_and_asked()
