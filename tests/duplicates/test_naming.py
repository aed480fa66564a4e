"""Names of groups."""

from qpr_jax import find_duplicates
from qpr_jax.duplicates.groups import group_words


def test_words_are_those_of_the_group_and_of_few_others():
    groups = [
        ["How do I reset my password?", "reset the password", "I forgot my PASSWORD"],
        ["Where is my parcel?", "where is the parcel now"],
        ["", "..."],
    ]
    texts = [text for group in groups for text in group]
    others = ["how do i pay", "where is the office", "is the shop open", "do i get my money back"]
    first, second, none = group_words(groups, [*texts, *others])
    assert first[:2] == ["password", "reset"]
    assert second[0] == "parcel"
    assert none == []
    # bus and car are in half of their group, and red in other texts, too.
    texts = ["red bus", "red car", "red dog", "eel"]
    assert group_words([["red bus", "red car"]], texts) == [["bus", "car"]]
    assert group_words([["red bus"] * 2], ["red bus"] * 2) == [[]]  # nothing sets it apart
    small = ["What do we do after our?", "our we, what's after", "i'd do it, just do", "can't we"]
    assert group_words([small[:2], small[2:]], [*small, "cook rice"]) == [[], []]


def test_a_group_has_the_text_nearest_to_its_mean():
    texts = ["How to cook rice?", "how to cook rice", "How to cook RICE!", "is it open on sundays"]
    (group,) = find_duplicates(texts, encoder="open_student").groups
    assert group.central in texts[:3]
    assert group.words == ["cook", "rice"]
    rows = find_duplicates(texts, encoder="open_student").to_dicts("groups")
    assert {(row["central"], row["words"]) for row in rows} == {(group.central, "cook rice")}
