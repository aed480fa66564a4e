"""The texts that the packaged encoder learns from."""

import random
import re
import tomllib

import pytest

from experiments.open_texts import GRAMMAR, REQUESTS, make_requests, read_wordnet
from qpr_jax.errors import UserError

LICENCE = "  1 This software and database is provided under this licence\n"
ENTRIES = {
    "noun": (
        "00001740 09 n 02 login 0 log_in 0 000 | the act of beginning (a session); "
        '"his login failed twice today"\n'
        "00002000 05 n 01 house_cat 0 000 | any domesticated member of the genus Felis\n"
    ),
    "verb": "00003000 30 v 01 restart 0 000 01 + 02 00 | start again after a pause\n",
    "adj": "",
    "adv": "",
}


def test_wordnet_gives_definitions_examples_and_phrases(tmp_path):
    with pytest.raises(UserError, match=r"data\.noun"):
        read_wordnet(tmp_path)
    for name, text in ENTRIES.items():
        (tmp_path / f"data.{name}").write_text(LICENCE + text)
    definitions, examples, phrases = read_wordnet(tmp_path)
    assert definitions == ["the act of beginning", "start again after a pause"]  # no animals
    assert examples == ["his login failed twice today"]
    assert phrases == ["log in"]


def test_every_rule_of_the_grammar_is_there_and_used():
    rules = tomllib.loads(GRAMMAR.read_text())
    used = {
        name for texts in rules.values() for text in texts for name in re.findall(r"{(\w+)}", text)
    }
    assert used | {*REQUESTS} == {*rules}
    made = make_requests(rules, 500, random.Random(0))
    assert len(set(made)) == 500
    assert not any("{" in text for text in made)
