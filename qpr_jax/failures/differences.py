"""In what two questions differ: numbers, negation, names, word order, length, as groups of pairs.

All are pure functions of two texts, made for English; any strings work.
"""

from __future__ import annotations

import itertools
import operator
import re
import string
import unicodedata
from collections.abc import Callable, Set
from dataclasses import dataclass

from qpr_jax.text.tokenizer import nfkc, nfkc_lower, tokenize

MUCH_LONGER = 1.5  # times the words
SHORT, LONG = 4, 20  # words


@dataclass(frozen=True)
class Group:
    """Pairs of a query and another question that differ in one way; `holds` says which."""

    name: str
    title: str
    meaning: str
    holds: Callable[[str, str], bool]


def groups(vocabulary: Set[str] | None = None) -> tuple[Group, ...]:
    """The groups, which overlap; without a vocabulary, that of unseen words is left out."""
    if vocabulary is None:
        return _OF_TEXTS
    known = vocabulary
    unseen = Group(
        "unseen",
        "Unseen words",
        "the query has a word outside the vocabulary of the run whose splits these are",
        lambda query, _: has_unseen_words(query, known),
    )
    return (*_OF_TEXTS, unseen)


# A number with commas, Indian ones too (1,00,000); another number.
_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?:,\d{2,3}){0,6},\d{3}(?!,?\d)(?:\.\d+)?|\d+(?:\.\d+)?")
_WORDS_TO_TWENTY = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_WORDS_FROM_THIRTY = (
    "thirty forty fifty sixty seventy eighty ninety hundred thousand million billion"
)
_FROM_THIRTY = (*range(30, 100, 10), 100, 1000, 10**6, 10**9)
_SPELLED = {
    **{word: str(number) for number, word in enumerate(_WORDS_TO_TWENTY.split(), start=2)},
    **dict(zip(_WORDS_FROM_THIRTY.split(), map(str, _FROM_THIRTY), strict=True)),
}


def numbers(text: str) -> frozenset[str]:
    """The numbers of a text as digits: "2", "2.0", "two" and the "2" of "2nd" are one.

    "one" is none of them, as it mostly stands for something else ("which one").
    """
    found = {_plain(number) for number in _NUMBER.findall(nfkc(text))}
    return frozenset(found | {_SPELLED[word] for word in tokenize(text) if word in _SPELLED})


def _plain(number: str) -> str:
    digits = "".join(c if c == "." else str(unicodedata.decimal(c)) for c in number if c != ",")
    whole, _, part = digits.partition(".")
    part = part.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{part}" if part else "")


def numbers_differ(first: str, second: str) -> bool:
    """Whether the sets of numbers differ; a "1" is also that of a "one"."""
    of_first, of_second = numbers(first), numbers(second)
    differing = of_first ^ of_second
    if "1" in differing and "one" in tokenize(first if "1" in of_second else second):
        differing -= {"1"}
    return bool(differing)


# Curly ones, accents that stand for one, a prime.
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\xb4`\u2032", "'"))
_FIRST = "(?:is|are|was|were|has|could|would|should|must)n'?t"  # before their subject
_EITHER = "(?:do|does|did|have|ca|wo|need)n'?t"  # or before a verb: Don't eat that
_PRONOUN = "(?:i|you|he|she|it|we|they|there|this|that|these|those)"
_SUBJECT = rf"(?:{_PRONOUN}|the|an?|my|your|his|her|our|their|any|anyone|everyone|some|people)"
_START = r"(?:^|[.?!:])\W{0,3}"  # of a sentence
_NEUTRAL = re.compile(
    rf"{_START}(?:{_FIRST}|{_EITHER}\s+{_SUBJECT})\b"  # Isn't it better: asks whether it is
    rf"|,\s*(?:{_FIRST}|{_EITHER})\s+{_PRONOUN}\s*(?=[?!.]|$)"  # ..., isn't it?
    r"|\bor\s+(?:why\s+)?not\b"  # Is it good or not? Why or why not?
    r"|\bnot\s+(?:only|just)\b"
    r"|\bno\.?\s*\d"  # no. 1
)
_NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|nowhere|neither|nor|non|cannot|without|[a-z]+n't"
    r"|(?:do|does|did|is|are|was|were|ca|could|wo|would|should|have|has|had|ai)nt)\b"
)


def negates(text: str) -> bool:
    """Whether a text has not, no, never, nothing, without, a word in n't or the like.

    Not where it leaves the question the same: "Isn't it better?", "..., isn't it?", "or not",
    "not only", "no. 1".
    """
    return bool(_NEGATION.search(_NEUTRAL.sub(" ", nfkc_lower(text.translate(_APOSTROPHES)))))


def negation_differs(first: str, second: str) -> bool:
    """Whether one of them negates and the other does not."""
    return negates(first) != negates(second)


# Letters with dots between (U.S.), or a word, apostrophes inside.
_WORD = re.compile(r"(?<!\w)(?:[^\W\d_]\.)+[^\W\d_](?!\w)|[^\W_]+(?:'[^\W_]+)*")
_SENTENCE_END = re.compile(r"[.?!:]")
# Words that are no names, even where somebody wrote them with a capital.
_SMALL_WORDS = (
    "a an and any are as at be by can could did do does dr for from had has have how i i'd i'll "
    "i'm i've if in into is its mr mrs ms my not of on or our should so than that the their then "
    "there these this to was were what when where which whose why will with would you your"
)
_SMALL = frozenset(_SMALL_WORDS.split())


def names(text: str) -> frozenset[str]:
    """The names of a text in lower case: words with a capital, and acronyms.

    The first word of a sentence, small words (The, Why) and the words of a question in title case
    are none, but for those with a capital or two inside (USA, iPhone). A text in capitals has none.
    """
    text = nfkc(text.translate(_APOSTROPHES))
    words = [(match.group(), match.start(), match.end()) for match in _WORD.finditer(text)]
    letters = [c for c in text if c.isalpha()]
    if len(words) > 3 and not any(c.islower() for c in letters):
        return frozenset()
    titled = _in_title_case([word for word, _, _ in words])
    found, before, end = set(), "", 0
    for word, start, stop in words:
        acronym = any(c.isupper() for c in word[1:])
        if word.lower() not in _SMALL:
            starts = not before or _ends_sentence(before, text[end:start])
            if acronym or (word[0].isupper() and not starts and not titled):
                found.add(_name(word))
        before, end = word, stop
    return frozenset(found)


def _ends_sentence(word: str, between: str) -> bool:
    """Whether a sentence ends between a word and the next; not after "Dr." or an initial."""
    ends = _SENTENCE_END.search(between)
    short = word == "vs" or (len(word) <= 3 and word[0].isupper())
    return ends is not None and not (short and ends.group() == ".")


def _in_title_case(words: list[str]) -> bool:
    """Whether most words are capitalised, a small one or five long ones among them."""
    later = [word for word in words[1:] if word[0].isalpha() and not re.match(r"I\b", word)]
    capital = [word for word in later if word[0].isupper()]
    small = [word for word in capital if word.lower() in _SMALL]
    long = [word for word in later if len(word) > 3 and word.lower() not in _SMALL]
    mostly = len(later) >= 3 and len(capital) >= 0.8 * len(later) and bool(small)
    return mostly or (len(long) >= 5 and all(word[0].isupper() for word in long))


def _name(word: str) -> str:
    """A word without what is not of its name: dots, 's, the plural of an acronym."""
    word = re.sub(r"'s$|\.", "", word)
    if len(word) > 2 and word[:-1].isupper() and word.endswith("s"):
        word = word[:-1]
    return word.lower()


def names_differ(first: str, second: str) -> bool:
    """Whether one of them has a name that the other has not, not even without its capital."""

    def missing(named: str, other: str) -> bool:
        words = {_name(word) for word in _WORD.findall(nfkc(other.translate(_APOSTROPHES)))}
        return bool(names(named) - words)

    return missing(first, second) or missing(second, first)


def order_differs(first: str, second: str) -> bool:
    """Whether they are of the same words, each as often, in another order."""
    words, others = tokenize(first), tokenize(second)
    return words != others and sorted(words) == sorted(others)


def same_words(first: str, second: str) -> bool:
    """Whether they are of the same words in the same order, and differ in case or marks alone."""
    return tokenize(first) == tokenize(second)


def has_unseen_words(query: str, vocabulary: Set[str]) -> bool:
    """Whether a word of the query is not in the vocabulary, words as of `tokenize`."""
    return any(word not in vocabulary for word in tokenize(query))


def much_longer(first: str, second: str) -> bool:
    """Whether the first has `MUCH_LONGER` times the words of the second, or more."""
    return len(tokenize(first)) >= MUCH_LONGER * max(1, len(tokenize(second)))


def overlap(first: str, second: str) -> float:
    """The share of all their words that are in both (Jaccard's index); 1 where neither has one."""
    words, others = {*tokenize(first)}, {*tokenize(second)}
    return len(words & others) / len(words | others) if words | others else 1.0


def marked(text: str, other: str) -> list[tuple[str, bool]]:
    """The text in pieces, with True for those of words that the other has not, blanks between."""
    words = {*tokenize(other)}
    pieces = _PIECE.split(text)
    differs = [not words.issuperset(tokenize(piece)) for piece in pieces]
    for at in range(1, len(pieces) - 1):
        if pieces[at].isspace() and differs[at - 1] and differs[at + 1]:
            differs[at] = True
    runs = itertools.groupby(zip(pieces, differs, strict=True), key=operator.itemgetter(1))
    joined = [("".join(piece for piece, _ in run), differ) for differ, run in runs]
    return [(piece, differ) for piece, differ in joined if piece]


def lacking(text: str, other: str) -> list[str]:
    """The words of the other that the text has not, each once, in order."""
    words = {*tokenize(text)}
    return [word for word in dict.fromkeys(tokenize(other)) if word not in words]


# Blanks, and marks beside them; what is between two of these is a word, or words joined by marks.
_MARKS = (
    re.escape(string.punctuation)
    + "\xa1\xab\xbb\xbf\u2013-\u201e\u2026\u0964\u3001\u3002\uff01\uff0c\uff1f"
)
_PIECE = re.compile(rf"((?:^|(?<=\s))[{_MARKS}]+|[{_MARKS}]{{0,9}}\s+|[{_MARKS}]{{1,9}}$)")

_OF_TEXTS = (
    Group("numbers", "Numbers", "their sets of numbers differ", numbers_differ),
    Group("negation", "Negation", "one negates and the other does not", negation_differs),
    Group("names", "Names", "one has a name or acronym that the other has not", names_differ),
    Group("order", "Word order", "the same words in another order", order_differs),
    Group("same", "Same words", "the same words; case or marks differ at most", same_words),
    Group(
        "longer",
        "Query longer",
        f"the query has {MUCH_LONGER:g} times the words of the other question, or more",
        much_longer,
    ),
    Group(
        "shorter",
        "Query shorter",
        f"the other question has {MUCH_LONGER:g} times the words of the query, or more",
        lambda query, other: much_longer(other, query),
    ),
    Group(
        "short",
        "Short query",
        f"the query has {SHORT} words or fewer",
        lambda query, _: len(tokenize(query)) <= SHORT,
    ),
    Group(
        "long",
        "Long query",
        f"the query has more than {LONG} words",
        lambda query, _: len(tokenize(query)) > LONG,
    ),
)
