"""What texts are: copies of each other where their folded texts are equal, near by what is left.

A `Cleaner` leaves HTML and shared sentences out, which decides what is near, never what is equal.
"""

from __future__ import annotations

import collections
import decimal
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qpr_jax.errors import UserError
from qpr_jax.text.markup import unread_parts, without_html
from qpr_jax.text.tokenizer import combining_marks, nfkc, nfkc_lower

_OPEN, _CLOSE = (
    "\xab\u2039\u201c\u201e\u201f\u300a\u300c\u300e",
    "\xbb\u203a\u201d\u300b\u300d\u300f",
)
_APOSTROPHES = dict.fromkeys("\u2018\u2019\u201b\u02bc\xb4", "'")
_QUOTES = str.maketrans(_APOSTROPHES | dict.fromkeys(_OPEN + _CLOSE, '"'))
_FRENCH = re.compile(r"\xab\s+(\w[^\xab\xbb]*?)\s+\xbb")  # quotation marks with blanks
_PAIRED = re.compile(r"""(?<![\w"'])["']*(?:"(\w[^"]*)"|'(\w[^']*)')["']*(?!\w)""")
_LONE = re.compile(r'(?<!\S)"+(?=\w)|(?<=[^\W\d_])([.,;:?!]*)"+(?=[\s.,;:?!)]|$)')
_CORNERS = "\xab\xbb\u2039\u203a\u300a-\u300f"
_DIRECTED = frozenset(f"\xbf\xa1{_OPEN}{_CLOSE}")
_MARKS = ".,;:?!"
# After a word. "!" right after a number is a factorial.
_INNER = re.compile(rf"[{_MARKS}](?<=\w.)(?<!\d!)[{_MARKS}]*(?=\s)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# A number with commas, also the Indian ones (1,00,000), one with a decimal comma, or one without.
_GROUPED = re.compile(
    r"(?<!\d)\d{1,3}(?:,\d{2,3}){0,6},\d{3}(?!,?\d)(?:\.\d+)?"
    r"|(?<![\d.,])\d+,\d\d(?![.,]?\d)|\d+(?:\.\d+)?"
)
_SPELLED_NUMBERS = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred "
    "thousand million billion"
)
_NUMBERS = (*range(2, 20), *range(20, 100, 10), 100, 1000, 10**6, 10**9)
_SPELLED = dict(zip(_SPELLED_NUMBERS.split(), map(str, _NUMBERS), strict=True))
_NUMBER_OR_WORD = re.compile(rf"{_GROUPED.pattern}|\b(?:{'|'.join(_SPELLED)})\b")
_NEGATIVE = re.compile(r"(?<!\w)-\d+")
# How Unicode names the marks that end or divide sentences.
_MARK = re.compile("STOP|COMMA|QUESTION|EXCLAMATION|COLON|DANDA|KHAN|SHAD$|SIGN .*SECTION")
# Tags belong to a flag; joiners, to scripts from Hebrew on and to emoji.
_TAGS = "(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0020-\U000e007f]+"
_JOINERS = "[\u200c\u200d]+(?![\u0590-\U0001fbff])|(?<![\u0590-\U0001fbff])[\u200c\u200d]+"
_DEEPEST = 9  # quotations in quotations
_DIVIDED = re.compile(r"[\r\n]|[.!?:]\s")
_BLANKS = re.compile(r"\s+")
_OF_WORD = re.compile(r"[^\W_]")
_LEAST, _SHARE = 5, 0.02  # rows that share a sentence: at least so many, and this share of all
_QUESTION = ("?", "\uff1f", "\u061f")  # marks at the end of one
_ALONE = 0.1  # the largest share of these rows that have nothing else; more is a question


def as_texts(texts: Sequence[str], name: str = "questions") -> list[str]:
    """Return `texts` as a list; UserError about the argument `name` unless all are strings."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        what = f"`{name}`: expected a list of strings, got {type(texts).__name__}"
        remedy = f"pass [{name}]" if isinstance(texts, str) else "pass a string, or a list of them"
        raise UserError(what, remedy=remedy)
    result = list(texts)
    for i, text in enumerate(result):
        if not isinstance(text, str):
            what = f"`{name}`: expected strings, got {type(text).__name__} at position {i}"
            raise UserError(what, remedy="leave it out")
    return result


def folded(text: str) -> str:
    """Fold case, blanks, dashes, characters that nobody sees, quotation marks, and final marks.

    Final marks are those of all scripts after a word. Other signs count: C, C++ and C# are three
    texts, and so are 5, -5 and 5!. A superscript is no digit. A folded text stays as it is.
    """
    for _ in range(_DEEPEST):
        before, text = text, _fold(text)
        if text == before:
            break
    return text


def without_unseen(text: str) -> str:
    """Remove characters that nobody sees, such as soft hyphens and zero-width spaces."""
    return text if text.isascii() else _patterns().unseen.sub("", text)


def _fold(text: str) -> str:
    marks, inner = _MARKS, _INNER
    if not text.isascii():
        patterns = _patterns()
        marks, inner = patterns.marks, patterns.inner
        text = _FRENCH.sub('"\\1"', " ".join(without_unseen(text).split()))
        if not _DIRECTED.isdisjoint(text):
            text = patterns.directed.sub("", text)
        text = text.translate(_QUOTES)
        text = patterns.dashes.sub("-", apart_digits(text))
        text = patterns.dashes.sub("-", nfkc(nfkc(text).casefold()))
    text = " ".join(text.casefold().replace("`", "'").split())
    if '"' in text or "'" in text:
        text = _PAIRED.sub(lambda quoted: quoted[1] or quoted[2], text)
        text = _LONE.sub(r"\1", text)
    text = inner.sub("", text)
    plain = text.rstrip(f" {marks}")
    if plain[-1:].isdigit() and text[len(plain) :].startswith("!"):
        plain += "!"
    return plain or text


def has_word(text: str) -> bool:
    """Return whether a text has a letter or a digit; others are equal only if written alike."""
    return _OF_WORD.search(text) is not None


def without_numbers(text: str) -> str:
    """Replace all numbers of a folded text by 0."""
    return _NUMBER.sub("0", text)


def number_key(text: str) -> str:
    """Return the numbers of a folded text, in order, as a text; rows with one key are compared."""
    found = (number for number, _ in itertools.groupby(number_list(text)))
    return " ".join([*found, *_NEGATIVE.findall(text)])


def apart_digits(text: str) -> str:
    """Keep digits that NFKC would join to others apart: 10⁶ is 10^6, 10₂ is 10_2, 3½ is 3 1/2."""
    if text.isascii() or (found := _odd_digits())[0].isdisjoint(text):
        return text
    _, raised, lowered, others = found
    text = lowered.sub(lambda sign: f"_{sign[0]}" if sign[1] is None else f"{sign[0]}_", text)
    text = raised.sub(r"^\g<0>", text)
    return others.sub(lambda sign: f" {nfkc(sign[0])} ".replace("\u2044", "/"), text)


@functools.cache
def _odd_digits() -> tuple[frozenset[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return such signs, and patterns of superscripts, subscripts beside digits, and others."""
    kinds: dict[str, list[str]] = {"<super>": [], "<sub>": [], "": []}
    for sign in map(chr, range(0x80, 0x20000)):
        kind, *_ = unicodedata.decomposition(sign).split() or [""]
        plain = unicodedata.normalize("NFKC", sign)
        if kind in kinds and kind and (plain.isdigit() or plain in "+-=()in\u2212"):
            kinds[kind].append(sign)
        elif kind and any(map(str.isdigit, plain)) and not sign.isdecimal():
            kinds[""].append(sign)
    raised, lowered, others = (re.escape("".join(signs)) for signs in kinds.values())
    beside = rf"(?<=\d)[{lowered}]+|()[{lowered}]+(?=\d)"
    digits = frozenset(itertools.chain(*kinds.values()))
    return digits, re.compile(f"[{raised}]+"), re.compile(beside), re.compile(f"[{others}]")


def number_list(text: str) -> list[str]:
    """Return the numbers of a text as digits, in its order; see `differences.numbers`."""
    found = _NUMBER_OR_WORD.findall(nfkc_lower(apart_digits(text)))
    return [_SPELLED.get(each) or _as_digits(each) for each in found]


def _as_digits(number: str) -> str:
    number = re.sub(r",(?=\d\d$)", ".", number)  # 25,00
    plain = f"{decimal.Decimal(number.replace(',', '')):f}"
    return plain.rstrip("0").removesuffix(".") if "." in plain else plain


class _Patterns:
    """Made from the categories and names of Unicode, at the first use."""

    def __init__(self) -> None:
        unseen, dashes, marks = [], ["\u2212"], [*_MARKS]
        for code in range(0x80, 0x20000):
            sign = chr(code)
            match unicodedata.category(sign):
                case "Cf" if sign not in "\u200c\u200d":
                    unseen.append(sign)
                case "Pd":
                    dashes.append(sign)
                case "Po" if _MARK.search(unicodedata.name(sign)) and sign not in "\xbf\xa1":
                    marks.append(sign)
        self.marks, letter = "".join(marks), r"[^\W\d_]"
        # Variation selectors and the grapheme joiner are marks that nobody sees.
        self.unseen = re.compile(rf"[{''.join(unseen)}\u034f\ufe00-\ufe0f]+|{_TAGS}|{_JOINERS}")
        self.dashes = re.compile(f"[{''.join(dashes)}]")
        # Where a script has no blanks, the direction of a quotation mark says what it belongs to.
        self.directed = re.compile(
            rf"[\xbf\xa1{_CORNERS}]+(?=\w)|(?<=[\w{self.marks}{combining_marks()}])[{_CORNERS}]+"
            rf"|(?<=\w)[{_OPEN}]+(?={letter})|(?<={letter})[{_CLOSE}]+(?=\w)"
        )
        after = rf"[\w{combining_marks()}]"
        self.inner = re.compile(_INNER.pattern.replace(r"\w", after).replace(_MARKS, self.marks))


_patterns = functools.cache(_Patterns)


@dataclass(frozen=True)
class Cleaner:
    """Leaves HTML, and sentences that many texts of a table share, out of what is encoded.

    shared: those sentences and their counts; None: texts stay as they are.
    """

    shared: Mapping[str, int] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Cleaner:
        """Return that of a table of texts."""
        return cls(shared_sentences([*map(_visible, texts)]))

    def clean(self, text: str) -> str:
        """Return what is encoded of a text."""
        if self.shared is None:
            return text
        return without_shared(_visible(text), self.shared)

    def clean_all(self, texts: Iterable[str]) -> list[str]:
        """Return what is encoded of each text."""
        return [*map(self.clean, texts)]

    def told_apart(self, texts: Iterable[str]) -> set[str]:
        """Find texts of which cleaning takes what another one lacks, and the other way round.

        The texts are equal after cleaning. Those found are compared with all that they have.
        """
        lefts = {text: _left_out(without_unseen(text), self.shared or {}) for text in texts}
        several = {*lefts.values()}
        apart = {one for one in several if any(not (one <= o or o <= one) for o in several)}
        return {text for text, left in lefts.items() if left in apart}


def _visible(text: str) -> str:
    """Return a text without HTML and without characters that nobody sees."""
    text = without_unseen(text)
    return without_html(text) if "<" in text or "&" in text else text


def shared_sentences(texts: Sequence[str]) -> dict[str, int]:
    """Find the sentences and lines that many texts have beside others, and their counts.

    A sentence that is often the whole text is a question, not a shared part. Nor is one that often
    tells texts apart, as "Yes." and "No." after a question. Most frequent first, of equally
    frequent ones the one that comes first.
    """
    counts: collections.Counter[str] = collections.Counter()
    whole: collections.Counter[str] = collections.Counter()
    for text in texts:
        parts = _split(text)
        if len(parts) > 1:
            counts.update([*dict.fromkeys(filter(None, map(_plain, _beside_question(parts))))])
        else:
            whole[text] += 1
    least = max(_LEAST, _SHARE * len(texts))
    shared = {part: count for part, count in counts.most_common() if count >= least}
    alone: collections.Counter[str] = collections.Counter()
    for text, count in whole.items() if shared else ():
        alone[_plain(text)] += count
    shared = {part: count for part, count in shared.items() if alone[part] <= _ALONE * count}
    while telling := _telling(texts, shared):
        shared = {part: count for part, count in shared.items() if part not in telling}
    return shared


def _telling(texts: Sequence[str], shared: Mapping[str, int]) -> set[str]:
    """The sentences without which too many of their texts would be equal to different ones."""
    groups: dict[str, collections.Counter[frozenset[str]]]
    groups = collections.defaultdict(collections.Counter)
    for text in texts if shared else ():
        if left := _shared_parts(text, shared):
            groups[folded(without_shared(text, shared))][left] += 1
    counts: collections.Counter[str] = collections.Counter()
    for group in groups.values():
        # Texts that have the same sentences, and some more, are not told apart by them.
        for first, second in itertools.pairwise(
            sorted(group, key=lambda each: (len(each), *sorted(each)))
        ):
            if not first <= second:
                counts.update(dict.fromkeys(first - second, group[first]))
                counts.update(dict.fromkeys(second - first, group[second]))
    # Fewer than _LEAST are chance: one question came with the signatures of two people.
    found = ((part, count) for part, count in counts.items() if count >= _LEAST)
    return {part for part, count in found if count > _ALONE * shared[part]}


def _shared_parts(text: str, shared: Mapping[str, int]) -> frozenset[str]:
    return frozenset(shared.keys() & {*map(_plain, _beside_question(_split(text)))})


def _beside_question(parts: Sequence[str]) -> list[str]:
    """Return the parts of a text without its only question, which no other text takes from it."""
    asked = [part for part in parts if part.rstrip().endswith(_QUESTION)]
    return [part for part in parts if len(asked) != 1 or part is not asked[0]]


def _left_out(text: str, shared: Mapping[str, int]) -> frozenset[str]:
    """Shared sentences, tags within the text, and what a reader of a page does not see."""
    left = _shared_parts(_visible(text), shared)
    return left | unread_parts(text) if "<" in text else left


def without_shared(text: str, shared: Mapping[str, int]) -> str:
    """Leave shared sentences out; of a text that has no others, the rarest one stays."""
    parts = [part for part in _split(text) if _plain(part)] if shared else []
    if len(parts) < 2:
        return text
    left_out = {_plain(part) for part in _beside_question(parts)} & shared.keys()
    others = [part for part in parts if _plain(part) not in left_out]
    return " ".join(others or [min(parts, key=lambda part: shared[_plain(part)])])


def _split(text: str) -> list[str]:
    """Divide a text at ends of lines, and at blanks behind a mark that ends a sentence."""
    if not _DIVIDED.search(text):
        return [text] if text else []
    parts, start = [], 0
    for blanks in _BLANKS.finditer(text):
        at = blanks.start()
        if text[at - 1 : at] in tuple(".!?:") or "\n" in blanks[0] or "\r" in blanks[0]:
            parts.append(text[start:at])
            start = blanks.end()
    return [part for part in [*parts, text[start:]] if part]


def _plain(part: str) -> str:
    """Return a sentence without case, blanks and the signs around its words."""
    text = " ".join(part.lower().split())
    first, last = _OF_WORD.search(text), _OF_WORD.search(text[::-1])
    return text[first.start() : len(text) - last.start()] if first and last else ""
