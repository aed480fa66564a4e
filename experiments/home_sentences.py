"""Sentences of the package home-assistant-intents, for `transfer` and `semantic_cache`.

The package has templates of what people say to a home assistant, by intent. A template is read as
`(this|that)`, `(in any;order)`, `[optional]`, `<rule>` and `{list:slot}`. Two sentences mean the
same if their intent and slots are equal. A near miss has another room, number or state, or turns
off instead of on.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
import random
import re
from typing import Any

from qpr_jax.text.cleaning import folded

SENTENCES, VALUES = 3, 2  # sentences of a meaning, meanings of a block of templates
MOST = 110  # blocks of templates; what is cached and asked is of the others
WORDINGS, DRAWS = 30, 20  # of what is cached and asked
LEFT_OUT = ("HassRespond", "HassNevermind", "HassBroadcast", "HassShopping")
# Values of slots that are free text or names of a home.
FREE = {
    "area": ["kitchen", "bedroom", "living room", "garage", "bathroom", "office", "hallway"],
    "floor": ["first floor", "ground floor", "basement", "attic"],
    "timer_name": ["pizza", "laundry", "tea", "bread"],
    "search_query": ["Abbey Road", "Thriller", "Bohemian Rhapsody", "Blue Train"],
    "todo_list_item": ["milk", "batteries", "call the plumber", "light bulbs"],
    "timer_command": ["turn off the lights", "open the garage door", "lock the front door"],
    "zone": ["work", "school", "the gym"],
}
# Names of devices by their domain.
NAMES = {
    "light": ["floor lamp", "hall light", "desk lamp"],
    "fan": ["ceiling fan", "table fan"],
    "media_player": ["kitchen speaker", "television", "old radio"],
    "cover": ["left curtain", "garage gate", "roof blind"],
    "lock": ["front door", "cellar door"],
    "climate": ["heat pump", "air conditioner"],
    "vacuum": ["robot vacuum", "floor cleaner"],
    "weather": ["Boston", "Lisbon", "the cabin"],
    "person": ["Alice", "Robert"],
    "todo": ["holiday list", "chores list"],
    "lawn_mower": ["robot mower", "garden mower"],
    "": ["coffee machine", "water heater", "aquarium pump", "humidifier"],
}
_SLOT = re.compile(r"\{([\w:]+)\}")  # of a list and, after a colon, of another name
_RULE = re.compile(r"<(\w+)>")
_INNER = re.compile(r"\(([^()\[\]]*)\)|\[([^()\[\]]*)\]")
_OPPOSITES = {"HassTurnOn": "HassTurnOff", "HassMediaPlayerMute": "HassMediaPlayerUnmute"}
_MORE = ("IncreaseTimer DecreaseTimer", "PauseTimer UnpauseTimer", "MediaPause MediaUnpause")
_PAIRS = ["TurnOn TurnOff", "MediaNext MediaPrevious", *_MORE]  # of intents
_MARK = chr(0)  # before the words of a slot
SAME, OPPOSITE = "paraphrase", "opposite command"
Meaning = tuple[str, ...]  # the intent, and its slots in order
Slots = dict[str, tuple[str, str]]  # the words of each slot, and what they mean
Rule = dict[str, Any]  # of JSON
Block = tuple[str, Rule]  # an intent, and some of its templates
Drawn = tuple[Block, Slots]
Question = tuple[str, str, Meaning]  # its kind and text


def _read_blocks(rng: random.Random) -> tuple[Rule, list[Block], list[Block]]:
    """Read the rules; and the blocks of `home_sentences`, and the others."""
    path = importlib.resources.files("home_assistant_intents").joinpath("data", "en.json")
    rules = json.loads(path.read_text("utf-8"))
    blocks = [
        (intent, block)
        for intent, found in sorted(rules["intents"].items())
        if not intent.startswith(LEFT_OUT)
        for block in found["data"]
    ]
    chosen = rng.sample(blocks, min(MOST, len(blocks)))
    return rules, chosen, [block for block in blocks if block not in chosen]


def home_sentences() -> tuple[list[tuple[str, Meaning]], list[tuple[str, str]]]:
    """Make sentences, each with its meaning, and pairs of near misses; the same ones each time."""
    rng, labeled = random.Random(0), list[tuple[str, Meaning]]()
    contrasts = list[tuple[str, str]]()
    rules, blocks, _ = _read_blocks(rng)
    for intent, block in blocks:
        firsts = []
        for slots in _draws(block, rules["lists"], rng):
            meaning = _meaning(intent, block, slots)
            for _ in range(SENTENCES):
                labeled.append((_fill(block, slots, rules, rng), meaning))
            firsts.append(labeled[-SENTENCES][0])
        contrasts += [(firsts[0], other) for other in firsts[1:]]
    first = {meaning: text for text, meaning in reversed(labeled)}
    for (intent, *values), text in first.items():
        other = first.get((_OPPOSITES.get(intent, ""), *values))
        contrasts += [(text, other)] if other else []
    return labeled, contrasts


def cached_and_asked() -> tuple[dict[str, Meaning], list[Question]]:
    """Make sentences of the blocks that `home_sentences` leaves out; all name all of their slots.

    Returns:
      One sentence of each block, to be cached; and what is asked then, at most once a block and
      kind: a paraphrase, or a contrast, whose meaning is not cached. Of WORDINGS a contrast has the
      one that is most like the cached sentence.
    """
    rng, asked = random.Random(1), list[Question]()
    rules, _, blocks = _read_blocks(random.Random(0))
    seen = {folded(text) for text, _ in home_sentences()[0]}

    def new_text(drawn: Drawn, like: str = "") -> str:
        (_, rule), slots = drawn
        marked = {name: (_MARK + words, value) for name, (words, value) in slots.items()}
        texts = [_fill(rule, marked, rules, rng) for _ in range(WORDINGS)]
        texts = [text.replace(_MARK, "") for text in texts if text.count(_MARK) == len(slots)]
        texts = [text for text in texts if folded(text) not in seen]
        alike = {text: difflib.SequenceMatcher(None, text, like).ratio() for text in texts}
        seen.add(folded(found := max(alike, key=alike.__getitem__, default="")))
        return found

    drawn = [(block, _draw_slots(block[1], rules["lists"], rng)) for block in blocks]
    first = [(text, each) for each in drawn if (text := new_text(each))]
    cached = {text: _meaning(*block, slots) for text, (block, slots) in first}
    for text, each in first:
        for kind, (block, slots) in _changes(each, drawn, rules["lists"], rng).items():
            meaning = _meaning(*block, slots)
            if (meaning in cached.values()) == (kind == SAME):
                words = new_text((block, slots), "" if kind == SAME else text)
                asked += [(kind, words, meaning)] if words else []
    return cached, asked


def _changes(first: Drawn, drawn: list[Drawn], lists: Rule, rng: random.Random) -> dict[str, Drawn]:
    """Return what may be asked about a cached sentence, by its kind."""
    ((intent, rule), slots), found = first, {SAME: first}
    for (other, of_other), names in drawn:
        alike = all(rule.get(key) == of_other.get(key) for key in ("slots", "requires_context"))
        pair = {intent.removeprefix("Hass"), other.removeprefix("Hass")}
        if alike and {*slots} == {*names} and any(pair == {*each.split()} for each in _PAIRS):
            found[OPPOSITE] = (other, of_other), slots
    for _ in range(DRAWS):
        for name, value in _draw_slots(rule, lists, rng).items():
            base = name.partition(":")[0]
            kind = "room" if base in ("area", "floor") else "state" if "_states" in base else "word"
            kind = "number" if "range" in lists.get(base, ()) else kind
            if value[1] != slots[name][1]:
                found.setdefault(f"other {kind}", (first[0], slots | {name: value}))
    return found


def _draw_slots(block: Rule, lists: Rule, rng: random.Random) -> Slots:
    """Draw the values of the slots of a block."""
    names = sorted({*_SLOT.findall(" ".join(block["sentences"]))})
    return {name: _value(name, block, lists, rng) for name in names}


def _draws(block: Rule, lists: Rule, rng: random.Random) -> list[Slots]:
    """Draw the values of the slots of a block: some, then the same with one that is another."""
    found = [_draw_slots(block, lists, rng)]
    for _ in range(10 * bool(found[0])):
        changed = rng.choice([*found[0]])
        other = found[0] | {changed: _value(changed, block, lists, rng)}
        if other not in found and len(found) < VALUES:
            found.append(other)
    return found


def _value(name: str, block: Rule, lists: Rule, rng: random.Random) -> tuple[str, str]:
    """Draw the value of a slot: words, and what they mean."""
    name = name.partition(":")[0]
    domain = str(block.get("requires_context", {}).get("domain", [""])[0])
    if name == "name" or name in FREE:
        words = rng.choice(FREE[name] if name in FREE else NAMES.get(domain, NAMES[""]))
    elif "range" in lists[name]:
        number = rng.choice([1, 2, 5, 10, 15, 20, 25, 30, 45, 50, 60, 75, 80, 90])
        limits = lists[name]["range"]
        words = str(max(limits["from"], number * (100 if limits["to"] > 1000 else 1)))
    else:
        value = rng.choice(lists[name]["values"])
        return value["in"], str(value["out"])
    return words, words


def _meaning(intent: str, block: Rule, slots: Slots) -> Meaning:
    """Name the intent with its slots; blocks that answer otherwise are of other meanings."""
    fixed = [f"{name}={value}" for name, value in sorted(block.get("slots", {}).items())]
    drawn = [f"{name.split(':')[-1]}={value}" for name, (_, value) in slots.items()]
    answer = block.get("response", "") if intent in ("HassGetState", "HassTimerStatus") else ""
    return intent, answer, *fixed, *sorted(drawn)


def _fill(block: Rule, slots: Slots, rules: Rule, rng: random.Random) -> str:
    """Choose one sentence of a block."""
    text, parts_of = rng.choice(block["sentences"]), rules["expansion_rules"]
    while text != (text := _RULE.sub(lambda rule: f"({parts_of[rule[1]]})", text)):
        pass  # rules may name rules
    text = _SLOT.sub(lambda slot: f"({slots[slot[1]][0]})", text)
    while match := _INNER.search(text):
        chosen = rng.choice((match[1] if match[1] is not None else match[2]).split("|"))
        parts = chosen.split(";")  # in any order
        chosen = " ".join(rng.sample(parts, len(parts)))
        if match[2] is not None and rng.random() < 0.5:
            chosen = ""
        text = text[: match.start()] + chosen + text[match.end() :]
    return " ".join(text.split())
