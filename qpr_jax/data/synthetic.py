"""A generated question log, in which paraphrases share their meaning more often than words."""

from __future__ import annotations

import importlib.resources
import random
from collections.abc import Callable

from qpr_jax.data.question_pairs import QuestionPairs, Row, gather_pairs
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

# A paragraph for actions, for objects and for contexts; in each line, the ways to say one concept.
# No two concepts share a way. Then phrases.
_WORDS = importlib.resources.files("qpr_jax.data").joinpath("synthetic_words.txt")
_FILLERS = ("please", "actually", "exactly", "these days", "really", "honestly", "in general")

_REPEATED = 0.6  # chance that a question takes all three ways from an earlier one of its cluster
SIZES = (2, 3, 4, 5, 6)  # questions of a cluster
_SIZE_SHARES = (0.5, 0.25, 0.12, 0.08, 0.05)
_FALSE_NEGATIVES = 0.03  # share of clusters with the meaning of another, unlinked cluster
ALONE = 0.4  # questions in no cluster, as a share of the clusters
_NEAR_MISSES = 0.6  # labeled non-duplicates between two clusters, as a share of the clusters
_FILLER, _PLAIN, _TYPO = 0.2, 0.15, 0.02  # shares of questions

Meaning = tuple[int, int, int]  # an action, an object, a context
Words = tuple[str, ...]  # one way to say each

*_CONCEPTS, _TEMPLATES = map(str.splitlines, _WORDS.read_text("utf-8").split("\n\n"))
CONCEPTS = {
    name: [line.split("|") for line in lines]
    for name, lines in zip(("action", "object", "context"), _CONCEPTS, strict=True)
}


def synthetic_pairs(*, seed: int = 0, clusters: int = 6000) -> QuestionPairs:
    """Generate a question log with about 3.3 questions for each of `clusters`.

    A meaning is an action, an object and a context, each said in one of four ways, in one of
    twelve phrases. About a third of all possible meanings are asked, so that each has neighbors
    that differ in one concept. Some of these are labeled non-duplicates, some questions belong to
    no cluster, and a few meanings belong to two.
    """
    most = int(min(map(len, CONCEPTS.values())) ** 3 / (1 + ALONE)) - 1
    if not 1 <= clusters <= most:
        what = f"expected 1 to {most:,} clusters, got {clusters:,}"
        raise UserError(what, setting="data.max_rows")
    rng = random.Random(seed)
    texts: list[str] = []
    seen: set[str] = set()

    def ask(words: Words) -> int:
        texts.append(new_text(lambda: phrase(words, rng), seen))
        return len(texts) - 1

    # A number of concepts that keeps the density of neighbors, and so the difficulty, at any size.
    each = min(*map(len, CONCEPTS.values()), max(4, round((4 * clusters) ** (1 / 3))))
    meanings = sample_meanings(each, clusters + int(ALONE * clusters), rng)
    twins = int(_FALSE_NEGATIVES * clusters)
    meanings[clusters - twins : clusters] = meanings[:twins]
    asked: dict[Meaning, list[int]] = {}
    links: list[tuple[int, int, bool]] = []
    for meaning in meanings[:clusters]:
        members: list[int] = []
        said: list[Words] = []
        for _ in range(rng.choices(SIZES, _SIZE_SHARES)[0]):
            repeated = said and rng.random() < _REPEATED
            said.append(rng.choice(said) if repeated else random_words(meaning, rng))
            members.append(ask(said[-1]))
        asked.setdefault(meaning, []).extend(members)
        links += [(rng.choice(members[:i]), members[i], True) for i in range(1, len(members))]
    alone = meanings[clusters:]
    for meaning in alone + rng.sample(meanings[:clusters], int(_NEAR_MISSES * clusters)):
        known = asked.get(meaning)
        question = rng.choice(known) if known else ask(random_words(meaning, rng))
        links.append((question, rng.choice(asked[_neighbor(meaning, asked, rng)]), False))
    rng.shuffle(links)
    rows: list[Row] = []
    for a, b, label in links:
        first, second = (b, a) if rng.random() < 0.5 else (a, b)
        rows.append((first + 1, second + 1, texts[first], texts[second], label))
    return gather_pairs(rows)


def sample_meanings(each: int, count: int, rng: random.Random) -> list[Meaning]:
    """Distinct meanings of the first `each` actions, objects and contexts."""
    codes = rng.sample(range(each**3), count)
    return [(code // each**2, code // each % each, code % each) for code in codes]


def _neighbor(meaning: Meaning, asked: dict[Meaning, list[int]], rng: random.Random) -> Meaning:
    """Return a meaning that is asked and shares two concepts with `meaning`.

    If none does, any other.
    """
    others = [
        (*meaning[:slot], concept, *meaning[slot + 1 :])
        for slot, concepts in enumerate(CONCEPTS.values())
        for concept in range(len(concepts))
    ]
    near = [other for other in others if other != meaning and other in asked]
    return rng.choice(near or [other for other in asked if other != meaning])


def random_words(meaning: Meaning, rng: random.Random) -> Words:
    """One way to say each concept of a meaning."""
    ways = zip(CONCEPTS.values(), meaning, strict=True)
    return tuple(rng.choice(concepts[concept]) for concepts, concept in ways)


def phrase(words: Words, rng: random.Random) -> str:
    """Return a question in these words, with fillers and typos here and there."""
    text = rng.choice(_TEMPLATES).format(**dict(zip(CONCEPTS, words, strict=True)))
    if rng.random() < _FILLER:
        text = f"{text[:-1]} {rng.choice(_FILLERS)}?"
    if rng.random() < _TYPO:
        at = rng.randrange(1, len(text) - 2)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if rng.random() < _PLAIN:
        return text[:-1].lower()
    return text[0].upper() + text[1:]


def new_text(make: Callable[[], str], seen: set[str]) -> str:
    """Make texts until one has a normalized text that is not `seen`, which then has it."""
    while (key := normalized_text(text := make())) in seen:
        pass
    seen.add(key)
    return text
