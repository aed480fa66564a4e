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
