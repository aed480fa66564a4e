"""A generated question log, in which paraphrases share their meaning more often than words."""

from __future__ import annotations

import random
from collections.abc import Iterator

from qpr_jax.data.quora import QuestionPairs, Row, gather_pairs
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text

# A concept in each line: the ways to say it, separated by bars. No two concepts share a way.
_ACTIONS = """
buy|purchase|acquire|get hold of
sell|auction off|get money for|cash in
repair|fix|mend|patch up
clean|wash|scrub|polish
choose|pick|select|decide on
store|stow|keep safe|put away
move|transport|carry|haul
paint|colour|decorate|spray
rent|lease|hire|charter
insure|cover|underwrite|get a policy for
measure|gauge|size up|take the dimensions of
build|construct|assemble|put together
destroy|wreck|demolish|smash
steal|rob|pinch|make off with
hide|conceal|disguise|keep secret
find|locate|track down|discover
photograph|snap|film|take pictures of
heat|warm|defrost|raise the temperature of
cool|chill|refrigerate|lower the temperature of
recycle|reuse|repurpose|give new life to
compare|contrast|rank|weigh up
improve|upgrade|enhance|make better
sketch|draw|illustrate|make a picture of
lock|secure|bolt|fasten
import|bring in|order from abroad|ship in
donate|give away|hand over|gift
test|check|inspect|try out
name|label|christen|call
advertise|promote|market|spread the word about
lend|loan|share|let others use
silence|quieten|mute|stop the noise of
describe|explain|characterise|put into words
"""
_OBJECTS = """
car|automobile|sedan|motor
bicycle|bike|cycle|two wheeler
laptop|notebook|macbook|portable computer
phone|mobile|smartphone|handset
sofa|couch|settee|loveseat
television|tv|telly|flat screen
house|home|cottage|residence
boat|yacht|dinghy|vessel
coat|jacket|parka|anorak
watch|clock|timepiece|chronometer
picture frame|photo frame|canvas mount|wooden border
fridge|icebox|cold cabinet|freezer
oven|stove|cooker|range
rug|carpet|mat|floor covering
lamp|light|lantern|torch
guitar|ukulele|banjo|lute
book|novel|paperback|volume
ring|necklace|bracelet|jewel
bag|backpack|rucksack|satchel
shoe|boot|sneaker|trainer
bed|mattress|futon|bunk
desk|table|workbench|bureau
camera|camcorder|webcam|dslr
drone|quadcopter|multicopter|flying robot
lorry|truck|van|pickup
garden|yard|lawn|allotment
fence|railing|hedge|boundary wall
pot|pan|saucepan|skillet
printer|copier|scanner|plotter
speaker|stereo|amplifier|hi fi
umbrella|parasol|sunshade|brolly
tent|canopy|marquee|gazebo
"""
_CONTEXTS = """
cheaply|on a budget|for little money|inexpensively
fast|quickly|in no time|within minutes
as a student|at college|on campus|while at university
in winter|when it snows|during the cold season|in december
in summer|in hot weather|during july|when it is sunny
without tools|with bare hands|by hand|with no equipment
for a child|for a toddler|for my kid|for a little one
as a beginner|with no experience|for newbies|as a novice
near the sea|on the coast|by the beach|along the shore
in a city|downtown|in an urban area|in a metropolis
in the countryside|in a village|in a rural area|on a farm
legally|within the law|by the rules|without a fine
online|on the internet|through a website|with an app
alone|on my own|single handedly|by myself
at night|after dark|past midnight|in the evening
before a wedding|for a marriage|for a bride|ahead of the nuptials
at work|in the office|at my job|on company time
on holiday|while travelling|during a vacation|on a trip
for the elderly|for a pensioner|for my grandmother|for seniors
in india|in mumbai|in delhi|in bangalore
in germany|in berlin|in munich|in hamburg
in america|in the usa|in texas|in california
after a flood|when soaked|with water damage|once drenched
in an emergency|in a crisis|under pressure|when disaster strikes
safely|with no risk|without getting hurt|without danger
for a school project|for homework|for a class assignment|for my teacher
in a small flat|in a studio|in a tiny apartment|in one room
for charity|for a good cause|for the needy|to help the poor
with friends|in a team|in a group|with my buddies
in the rain|during a storm|in a downpour|in monsoon weather
with a broken arm|with an injury|when disabled|in a wheelchair
like a professional|like an expert|as the masters do|to a high standard
"""
_TEMPLATES = (
    "How do I {action} my {object} {context}?",
    "How can I {action} a {object} {context}?",
    "What is the best way to {action} a {object} {context}?",
    "Is it possible to {action} the {object} {context}?",
    "Where should I start if I want to {action} a {object} {context}?",
    "Can someone tell me how to {action} this {object} {context}?",
    "{context}, how would you {action} a {object}?",
    "{context}, what should I know to {action} my {object}?",
    "My {object}: how could I {action} it {context}?",
    "I have a {object}. What does it take to {action} it {context}?",
    "Should I {action} my {object} {context}, and how?",
    "Any tips to {action} the {object} {context}?",
)
_FILLERS = ("please", "actually", "exactly", "these days", "really", "honestly", "in general")

_REPEATED = 0.6  # chance that a question takes all three ways from an earlier one of its cluster
_SIZES = (2, 3, 4, 5, 6)  # questions of a cluster
_SIZE_SHARES = (0.5, 0.25, 0.12, 0.08, 0.05)
_FALSE_NEGATIVES = 0.03  # share of clusters with the meaning of another, unlinked cluster
_ALONE = 0.4  # questions in no cluster, as a share of the clusters
_NEAR_MISSES = 0.6  # labeled non-duplicates between two clusters, as a share of the clusters
_FILLER, _PLAIN, _TYPO = 0.2, 0.15, 0.02  # shares of questions

Meaning = tuple[int, int, int]  # an action, an object, a context
Words = tuple[str, str, str]


def _concepts(table: str) -> list[list[str]]:
    return [line.split("|") for line in table.strip().splitlines()]


CONCEPTS = {
    "action": _concepts(_ACTIONS),
    "object": _concepts(_OBJECTS),
    "context": _concepts(_CONTEXTS),
}


def synthetic_pairs(*, seed: int = 0, clusters: int = 6000) -> QuestionPairs:
    """Generate a question log with about 3.3 questions for each of `clusters`.

    A meaning is an action, an object and a context, each said in one of four ways, in one of
    twelve phrases. About a third of all possible meanings are asked, so that each has neighbours
    that differ in one concept. As in real logs, some labeled non-duplicates are such neighbours,
    some questions belong to no cluster, and a few meanings belong to two clusters.
    """
    most = _most_clusters()
    if not 1 <= clusters <= most:
        raise UserError(f"expected 1 to {most}, got {clusters}", setting="data.synthetic_clusters")
    rng = random.Random(seed)
    texts: list[str] = []
    seen: set[str] = set()

    def ask(words: Words) -> int:
        while True:
            text = phrase(words, rng)
            if (key := normalized_text(text)) not in seen:
                seen.add(key)
                texts.append(text)
                return len(texts) - 1

    meanings = _meanings(clusters, rng)
    asked: dict[Meaning, list[int]] = {}
    links: list[tuple[int, int, bool]] = []
    for meaning in meanings[:clusters]:
        members: list[int] = []
        said: list[Words] = []
        for _ in range(rng.choices(_SIZES, _SIZE_SHARES)[0]):
            repeated = said and rng.random() < _REPEATED
            said.append(rng.choice(said) if repeated else random_words(meaning, rng))
            members.append(ask(said[-1]))
        asked.setdefault(meaning, []).extend(members)
        links += [(rng.choice(members[:i]), members[i], True) for i in range(1, len(members))]
    alone = meanings[clusters:]
    for meaning in alone + rng.sample(meanings[:clusters], int(_NEAR_MISSES * clusters)):
        question = (
            rng.choice(asked[meaning]) if meaning in asked else ask(random_words(meaning, rng))
        )
        links.append((question, rng.choice(asked[_neighbour(meaning, asked, rng)]), False))
    rng.shuffle(links)
    return gather_pairs(_rows(links, texts, rng))


def _most_clusters() -> int:
    return int(min(map(len, CONCEPTS.values())) ** 3 / (1 + _ALONE)) - 1


def _meanings(clusters: int, rng: random.Random) -> list[Meaning]:
    """The meaning of each cluster, then those of the questions in no cluster."""
    # A number of concepts that keeps the density of neighbours, and so the difficulty, at any size.
    each = min(*map(len, CONCEPTS.values()), max(4, round((4 * clusters) ** (1 / 3))))
    codes = rng.sample(range(each**3), clusters + int(_ALONE * clusters))
    meanings = [(code // each**2, code // each % each, code % each) for code in codes]
    twins = int(_FALSE_NEGATIVES * clusters)
    meanings[clusters - twins : clusters] = meanings[:twins]
    return meanings


def _neighbour(meaning: Meaning, asked: dict[Meaning, list[int]], rng: random.Random) -> Meaning:
    """A meaning that is asked and shares two concepts with `meaning`; if none does, any other."""
    others = [
        (*meaning[:slot], concept, *meaning[slot + 1 :])
        for slot, concepts in enumerate(CONCEPTS.values())
        for concept in range(len(concepts))
    ]
    near = [other for other in others if other != meaning and other in asked]
    return rng.choice(near or [other for other in asked if other != meaning])


def random_words(meaning: Meaning, rng: random.Random) -> Words:
    """One way to say each concept of a meaning."""
    action, item, context = (
        rng.choice(concepts[concept])
        for concepts, concept in zip(CONCEPTS.values(), meaning, strict=True)
    )
    return action, item, context


def phrase(words: Words, rng: random.Random) -> str:
    """A question with these words."""
    text = rng.choice(_TEMPLATES).format(**dict(zip(CONCEPTS, words, strict=True)))
    if rng.random() < _FILLER:
        text = f"{text[:-1]} {rng.choice(_FILLERS)}?"
    if rng.random() < _TYPO:
        at = rng.randrange(1, len(text) - 2)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if rng.random() < _PLAIN:
        return text[:-1].lower()
    return text[0].upper() + text[1:]


def _rows(
    links: list[tuple[int, int, bool]], texts: list[str], rng: random.Random
) -> Iterator[Row]:
    for a, b, label in links:
        if rng.random() < 0.5:
            a, b = b, a
        yield a + 1, b + 1, texts[a], texts[b], label
