"""What cleaning takes of a text, and what it leaves."""

import pytest

from qpr_jax.text.cleaning import Cleaner
from qpr_jax.text.markup import without_html


@pytest.mark.parametrize(
    ("rows", "sharing", "is_shared"),
    [(60, 4, False), (60, 5, True), (400, 7, False), (400, 8, True)],
)
def test_a_shared_sentence_is_in_five_rows_and_in_two_percent(rows, sharing, is_shared):
    texts = [f"Where is door {i}?" + " Sent by phone." * (i < sharing) for i in range(rows)]
    assert bool(Cleaner.of(texts).shared) is is_shared


def test_of_a_text_of_shared_sentences_the_rarest_stays():
    cleaner = Cleaner({"sent by phone": 90, "please call back": 9})
    for text in ("Please call back. Sent by phone.", "Sent by phone. Please call back."):
        assert cleaner.clean(text) == "Please call back."


def test_the_only_question_of_a_text_is_never_shared():
    asked = ["What is the cancellation policy?", "Can I bring my dog?", "Is there a pool?"]
    ends = ["We arrive on Friday.", "Please answer soon.", "Many thanks to all."]
    texts = [f"{text} {ends[i % 3]}" for i in range(60) for text in asked[i % 2 :]]
    cleaner = Cleaner.of(texts)
    for text in texts:
        (question,) = (part for part in asked if part in text)
        assert question in cleaner.clean(text)
    several = [f"Room {i} is cold. Can you help? What about room {i}?" for i in range(60)]
    assert "Can you help" not in Cleaner.of(several).clean(several[0])


def test_a_question_that_came_with_two_signatures_keeps_none():
    """One such question is chance; an answer tells the texts apart that it follows."""
    names = ["Thanks, Anna.", "Cheers, Bob.", "Regards, Dan."]
    texts = [f"Where is the key of door {i}? {names[i % 3]}" for i in range(24)]
    texts += [f"Do you sell lamps? {name}" for name in names]
    cleaner = Cleaner.of(texts)
    assert {cleaner.clean(text) for text in texts[24:]} == {"Do you sell lamps?"}
    assert cleaner.clean(texts[0]) == "Where is the key of door 0?"
    told = [f"Is lamp {i} on? {answer}" for i in range(24) for answer in ("Yes.", "No.")]
    assert not Cleaner.of(told).shared


def test_a_tag_of_any_name_goes_where_it_is_around_all_of_a_text():
    assert without_html("<key>a b</key>") == "a b"
    two = "<key>a</key> or <key>b</key>"
    assert without_html(two) == two
