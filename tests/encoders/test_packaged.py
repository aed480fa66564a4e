"""The encoders that the package carries: files, what they find, and which of them is default."""

import json
import re

import numpy as np
import pytest

from qpr_jax import Retriever, read_encoder
from qpr_jax.data.generated_questions import write_sample
from qpr_jax.duplicates.search import find_duplicates
from qpr_jax.encoders.load import MINILM, MOST_ROWS, PACKAGED, STUDENT, default_folder

QUESTIONS = [
    "How do I get a stain out of a wool coat?",
    "What is the tallest mountain in Africa?",
    "Where can I renew my driving licence?",
    "Which vitamins are good for the eyes?",
    "How much does a train ticket to the coast cost?",
    "Why is the sea salty?",
]


@pytest.fixture(scope="module", params=PACKAGED)
def retriever(request):
    return Retriever.build(QUESTIONS, encoder=request.param)


def test_it_is_small_and_the_one_of_its_card():
    files = [path for path in PACKAGED[STUDENT].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 25e6
    card = (PACKAGED[STUDENT] / "README.md").read_text()
    encoder = read_encoder(STUDENT)
    assert encoder.fingerprint in card
    assert encoder.settings["encoder.stored_dtype"] == "int8"
    sources = "Tatoeba SimpleQuestions WebQuestions CLINC150 WordNet all-MiniLM-L6-v2"
    assert all(source in card for source in sources.split())


@pytest.mark.parametrize(
    "query", ["zxqv blorp fnord", "asdfgh qwerty", "wie lerne ich deutsch", "", "1234 5678"]
)
def test_nothing_is_close_to_nonsense(retriever, query):
    assert not any(hit.close for hit in retriever.search(query, k=5)[0])


@pytest.mark.parametrize("encoder", PACKAGED)
def test_of_first_hits_in_a_help_desk_the_right_ones_are_close(tmp_path, encoder):
    write_sample(tmp_path / "sample")
    with open(tmp_path / "sample" / "logs.jsonl") as file:
        rows = [json.loads(line) for line in file]
    of_article = {row["answer"]: row["question"] for row in reversed(rows)}  # its first question
    others = [row for row in rows if row["question"] != of_article[row["answer"]]]
    answers = [*of_article]
    retriever = Retriever.build([*of_article.values()], encoder=encoder)
    for rerank in (False, None):
        found = retriever.search([row["question"] for row in others], 1, rerank=rerank)
        pairs = [(hits[0], row["answer"]) for hits, row in zip(found, others, strict=True)]
        right = np.array([answers[hit.id] == answer for hit, answer in pairs])
        assert right.mean() > 0.8
    close = np.array([hit.close for hit, _ in pairs])
    assert close[right].mean() > 0.75
    assert close[~right].mean() < close[right].mean() - 0.25


def test_a_misspelled_word_is_near_the_word():
    encoder = read_encoder(STUDENT)
    right, wrong, other = encoder.encode(["recommend", "reccomend", "mountain"])
    assert right @ wrong > right @ other


@pytest.mark.parametrize(
    "word",
    [
        *("printhelp", "qzvtkwmrxpbhj", "donaudampfschiffahrtsgesellschaft", "q" * 40, "q5" * 500),
        *(
            "____",
            "_" * 24,
            "****",
            "####",
            "=====",
            "->->",
            "*" * 40,
            "$$$$",
            "9f86d081884c7d659a2feaa0c55ad015",
            "4471208839",
            "WX-4471-BQ",
        ),
        *("Samsung-SM-G991B-DS-256GB", "kubernetes-ingress-controller-nginx"),
        *("https://www.fabrikam.org/zqx/page?id=89342", "maria.kowalczyk@fabrikam.org"),
        *("quarterly_report_final_v2.xlsx", "C:\\temp\\setup.exe"),
    ],
)
def test_texts_that_share_an_odd_word_alone_stay_apart(word):
    """Unless the teacher puts them near, too: `kubernetes` and `setup` say something."""
    texts = ["printer broken", "cancel my invoice", "she got fired from the stand for"]

    def kept(encoder):
        plain, vectors = (
            encoder.encode([text + end for text in texts]) for end in ("", f" {word}")
        )
        shares = (2 - 2 * vectors @ vectors.T) / np.maximum(2 - 2 * plain @ plain.T, 1e-3)
        return shares[~np.eye(len(texts), dtype=bool)].min()

    assert kept(read_encoder(STUDENT)) > min(0.7, kept(read_encoder(MINILM)) - 0.2)


@pytest.mark.parametrize(
    "texts",
    [
        ["How do I learn C?", "How do I learn C++?", "How do I learn C#?"],
        ["Is -5 degrees safe?", "Is 5 degrees safe?", "Is +5 degrees safe?"],
        ["Why is x < y?", "Why is x > y?", "Why is x = y?"],
        ["Is there a 5% discount?", "Is there a $5 discount?", "Is there a 5 discount?"],
        ["Is the answer \u2705?", "Is the answer \u274c?"],
        ["What is .NET?", "What is net?"],
        ["word " * 73 + tail for tail in ("cancel my plan", "broken screen", "invoice for May")],
    ],
)
def test_signs_and_the_end_of_long_texts_tell_texts_apart(texts):
    vectors = read_encoder(STUDENT).encode(texts)
    distances = ((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)
    assert distances[~np.eye(len(texts), dtype=bool)].min() > 0.003
    if "word" not in texts[0]:  # of a long text the score reads the first words alone
        assert not find_duplicates(texts, encoder=STUDENT).pairs


@pytest.mark.parametrize(
    ("count", "name"), [(1, MINILM), (MOST_ROWS, MINILM), (MOST_ROWS + 1, STUDENT)]
)
def test_minilm_is_the_default_up_to_fifty_thousand_rows(count, name, caplog):
    caplog.set_level("INFO", "qpr_jax")
    texts = [f"where is order {i}" for i in range(count)]
    assert default_folder(texts, count) == default_folder(texts) == PACKAGED[name]
    said = caplog.messages
    assert len(said) == 2
    assert all(line.startswith(f"encoder: {name}") for line in said)
    if name == STUDENT:
        assert 'more than 50,000 rows; `encoder="minilm"`' in said[0]
        assert re.search(r"takes about \d", said[0])
        assert said[1].endswith(" for 50,000 rows")


def test_a_call_without_an_encoder_takes_the_default(tmp_path, monkeypatch):
    monkeypatch.setattr("qpr_jax.encoders.load.MOST_ROWS", 5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / MINILM).mkdir()  # whatever lies in a folder of that name
    identities = {name: read_encoder(PACKAGED[name]).fingerprint for name in PACKAGED}
    few, many = Retriever.build(QUESTIONS[:5]), Retriever.build(QUESTIONS)
    assert (few.encoder.fingerprint, few.encoder_name) == (identities[MINILM], MINILM)
    assert (many.encoder.fingerprint, many.encoder_name) == (identities[STUDENT], STUDENT)
    assert len(many) == len(QUESTIONS)
