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
    # b and c are in half of their group, and a in other texts, too.
    assert group_words([["a b", "a c"]], ["a b", "a c", "a d", "e"]) == [["b", "c"]]
    assert group_words([["a b", "a b"]], ["a b", "a b"]) == [[]]  # nothing sets it apart


def test_a_group_has_the_text_nearest_to_its_mean():
    texts = ["How to cook rice?", "how to cook rice", "How to cook RICE!", "is it open on sundays"]
    (group,) = find_duplicates(texts, encoder="open_student").groups
    assert group.central in texts[:3]
    assert group.words == ["cook", "how", "rice"]
    rows = find_duplicates(texts, encoder="open_student").to_dicts("groups")
    assert {(row["central"], row["words"]) for row in rows} == {(group.central, "cook how rice")}
