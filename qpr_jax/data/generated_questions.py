"""Questions that the package makes: a sample, a synthetic log, and new ones from others."""

from __future__ import annotations

import importlib.resources
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from qpr_jax.data.question_pairs import QuestionPairs, Row, gather_pairs
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, refuse_existing, replace_folder
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
RECOMBINE = 0.3  # chance of continuing in another question, at each word that allows it
_MISSES = 2000  # walks in a row without a new question show that hardly any is left
_LONGEST = 32  # words; a walk may revisit a word
_MARKS = ".,;:!?'\"()"
REPLACED = 0.3  # chance that a word of _LETTERS and more gives way to another
_LETTERS = 4  # shorter ones make the question


def write_sample(folder: StrPath) -> dict[str, int]:
    """Write questions to the help desk of a shop to a new folder; return the rows of each file.

    questions.csv: `id,question,product,date`. queries.csv: `question,id`, wordings that
    questions.csv lacks, a row for each question there that means the same. pairs.csv: labeled
    pairs, `question1,question2,is_duplicate`. logs.jsonl: questions with their answers.
    """
    refuse_existing(folder)
    counts = {}
    with replace_folder(folder) as part:
        for name in ("questions.csv", "queries.csv", "pairs.csv", "logs.jsonl"):
            data = importlib.resources.files("qpr_jax.data").joinpath("sample_files", name)
            (part / name).write_bytes(data.read_bytes())
            stem, _, kind = name.partition(".")
            counts[stem] = len(data.read_bytes().splitlines()) - (kind == "csv")
    return counts


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
        same = asked.get(meaning)
        question = rng.choice(same) if same else ask(random_words(meaning, rng))
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
    """Return a meaning that is asked and shares two concepts with `meaning`, else any other."""
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


def recombine_questions(
    questions: Sequence[str], count: int, *, accept: Callable[[str], bool]
) -> list[str]:
    """Make at most `count` distinct new questions, whose vectors a student learns from a teacher.

    Each begins as a random question. After two adjacent words that another question has too, in any
    case, it continues with a chance of RECOMBINE as that question does. Tang et al. (2019),
    "Distilling Task-Specific Knowledge from BERT into Simple Neural Networks", section 3, augment
    such data by sampling n-grams. `accept` returns False for a question to leave out.
    """
    split = [words for words in map(str.split, questions) if words]
    places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)  # of adjacent words
    for number, words in enumerate(split):
        for i in range(1, len(words) - 1):
            places[words[i - 1].lower(), words[i].lower()].append((number, i))
    rng = random.Random(0)
    found: dict[str, None] = {}
    missed = 0
    while split and len(found) < count and missed < _MISSES:
        words, i, joined = rng.choice(split), 0, False
        walked: list[str] = []
        while i < len(words) and len(walked) < _LONGEST:
            walked.append(words[i])
            if 0 < i < len(words) - 1 and rng.random() < RECOMBINE:
                number, i = rng.choice(places[words[i - 1].lower(), words[i].lower()])
                joined = joined or split[number] is not words
                words = split[number]
            i += 1
        text = " ".join(walked)
        missed += 1
        if i == len(words) and joined and text not in found and accept(text):
            found[text] = None
            missed = 0
    return list(found)


def replace_words(questions: Sequence[str], words: Sequence[str]) -> list[str]:
    """Replace longer words of questions by random ones of `words`, so that a student meets these.

    Wei and Zou (2019), "EDA: Easy Data Augmentation", replace by synonyms; a teacher needs none.
    """
    rng = np.random.default_rng([0, 1])

    def replaced(question: str) -> str:
        parts = question.split()
        chosen = rng.random(len(parts)) < REPLACED
        others = rng.integers(len(words), size=len(parts))
        for i in np.flatnonzero(chosen):
            if len(core := parts[i].strip(_MARKS)) >= _LETTERS:
                parts[i] = parts[i].replace(core, words[others[i]])
        return " ".join(parts)

    return [replaced(question) for question in questions]
