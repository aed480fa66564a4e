"""Texts that mean something else and differ in one word: a negation, a number or an opposite.

Rules for English. Of other texts they make few contrasts or none.
"""

from __future__ import annotations

import random
import re

_OPPOSITES = (
    "enable/disable enabled/disabled activate/deactivate activated/deactivated up/down "
    "open/close opened/closed lock/unlock locked/unlocked block/unblock mute/unmute "
    "install/uninstall subscribe/unsubscribe upgrade/downgrade import/export upload/download "
    "send/receive buy/sell start/stop starting/stopping begin/end first/last next/previous "
    "before/after add/remove show/hide increase/decrease increasing/decreasing raise/lower "
    "gain/lose gaining/losing win/lose accept/reject allow/forbid approve/decline "
    "deposit/withdraw lend/borrow push/pull connect/disconnect login/logout with/without "
    "more/less most/least many/few best/worst better/worse good/bad high/low higher/lower "
    "highest/lowest big/small bigger/smaller biggest/smallest large/tiny long/short "
    "longer/shorter old/new older/newer oldest/newest old/young fast/slow faster/slower "
    "early/late earlier/later hot/cold warm/cool easy/hard easier/harder easiest/hardest "
    "cheap/expensive rich/poor strong/weak safe/unsafe safe/dangerous true/false right/wrong "
    "legal/illegal possible/impossible public/private free/paid full/empty hard/soft light/heavy "
    "light/dark loud/quiet clean/dirty dry/wet happy/sad love/hate always/never "
    "everyone/nobody everything/nothing all/none inside/outside above/below over/under near/far "
    "male/female man/woman men/women boy/girl boys/girls husband/wife father/mother "
    "brother/sister son/daughter he/she his/her day/night morning/evening today/tomorrow "
    "summer/winter north/south east/west positive/negative advantage/disadvantage "
    "advantages/disadvantages pros/cons success/failure succeed/fail black/white arrive/leave "
    "arrival/departure increase/reduce monthly/yearly minimum/maximum major/minor "
)
_SERIES = (
    "two three four five six seven eight nine ten",
    "monday tuesday wednesday thursday friday saturday sunday",
    "january february march april june july august september october november december",
    "red blue green yellow black white",
)
_NEGATED = re.compile(
    r"\b(?:(can)(?:not|'t| not)"
    r"|(do|does|did|is|are|was|were|should|would|could|has|have)(?:n't| not))\b",
    re.IGNORECASE,
)
_AFFIRMED = re.compile(
    r"\b(?:can|could|should|would|will|do|does|did|is|are|was|were|has|have)"
    r"(?: (?:i|you|we|they|he|she|it|people|someone|there|this|that))?\b",
    re.IGNORECASE,
)
# "Is it not free?" asks the same as "Is it free?"; "Can I not log in?" does not.
_YES_OR_NO = re.compile(
    r"\W*(?:is|are|was|were|do|does|did|has|have|will|would|should|could)(?:n't)?\b", re.IGNORECASE
)
_NEGATION = re.compile(r"\b(?:not?|never|cannot|without)\b|n't\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[1-9]\d{0,5}(?![\w.,]*\d|[a-z])")
_WORD = re.compile(r"[^\W\d_]+")


def _others() -> dict[str, list[str]]:
    """The words that each word may be replaced by."""
    found: dict[str, list[str]] = {}
    groups = [pair.split("/") for pair in _OPPOSITES.split()] + [row.split() for row in _SERIES]
    for group in groups:
        for word in group:
            found.setdefault(word, []).extend(other for other in group if other != word)
    return found


_OTHERS = _others()


def contrasts(text: str, rng: random.Random) -> list[str]:
    """Return at most three contrasts: negated or affirmed, another number, an opposite."""
    found = [negated(text), other_number(text, rng), opposite(text, rng)]
    return [contrast for contrast in found if contrast]


def negated(text: str) -> str:
    """Add "not" after the first auxiliary and its pronoun, or take a negation away; "" if none."""
    text = text.replace("\u2019", "'")
    if (match := _NEGATED.search(text)) and not _YES_OR_NO.match(text):
        return text[: match.start()] + (match[1] or match[2]) + text[match.end() :]
    if _YES_OR_NO.match(text) or _NEGATION.search(text):
        return ""
    if match := _AFFIRMED.search(text):
        return f"{text[: match.end()]} not{text[match.end() :]}"
    return ""


def other_number(text: str, rng: random.Random) -> str:
    """Raise one number by at least 1, at most a third of it (or 2) and 30; "" without a number."""
    matches = [*_NUMBER.finditer(text)]
    if not matches:
        return ""
    match = rng.choice(matches)
    number = int(match[0])
    other = number + rng.randint(1, max(2, min(number // 3, 30)))
    return text[: match.start()] + str(other) + text[match.end() :]


def opposite(text: str, rng: random.Random) -> str:
    """Replace one word by an opposite, or by another day, month, color or count.

    "" if no word has one.
    """
    matches = [match for match in _WORD.finditer(text) if match[0].lower() in _OTHERS]
    if not matches:
        return ""
    match = rng.choice(matches)
    other = rng.choice(_OTHERS[match[0].lower()])
    if match[0][0].isupper():
        other = other.capitalize()
    return text[: match.start()] + other + text[match.end() :]
