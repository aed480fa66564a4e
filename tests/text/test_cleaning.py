"""What cleaning takes of a text, and what it leaves."""

from qpr_jax.text.cleaning import Cleaner


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
