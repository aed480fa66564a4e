"""The warning that an encoder lacks the words of a table."""

import dataclasses
import json
import logging

import hypothesis
import pytest
from hypothesis import strategies as st

from qpr_jax import Encoder, Retriever, find_duplicates, read_encoder
from qpr_jax.encoders.encoder import MULTILINGUAL, count_unknown, say_unknown_words
from qpr_jax.encoders.load import MINILM, STUDENT
from qpr_jax.text.tokenizer import WordPieces, plain_words
from tests.encoders.examples import VOCABULARY, WORDS, cnn_encoder

TABLES = {
    "German": ["Wie kann ich mein Passwort ändern?", "Drucker druckt seit gestern nicht mehr"],
    "Spanish": ["¿Cómo puedo cambiar mi contraseña?", "La impresora no imprime desde ayer"],
    "French": ["Comment réinitialiser mon mot de passe ?", "Je ne reçois plus mes messages"],
    "Russian": ["Как сбросить пароль?", "Принтер не печатает"],
    "Japanese": ["パスワードを忘れました", "HPのプリンターが印刷しません。", "ログインできません"],
    "Chinese": ["我忘记了密码", "打印机无法打印", "无法登录VPN系统"],
    "Thai": ["ฉันลืมรหัสผ่าน", "เครื่องพิมพ์ไม่พิมพ์", "ฉันเข้าสู่ระบบไม่ได้"],
}
ENGLISH = {
    "tickets": [
        "INC0012345 Outlook keeps askng for pasword after update KB5034441",
        "VPN GlobalProtect wont connect - err 0x80070005",
        "printer HP LJ-4250n on 3rd floor jammed agian",
        "Pls reset MFA for user jsmith02@contoso.com",
        "onedrive not syncing, stuck at 99%",
    ],
    "codes": ["SM-G991B", "hp/lj-4250n", "kb_5034441", "a.b.c", "x86-64"],
    "addresses": ["https://intranet.contoso.com/wiki/vpn", "www.example.org", "max@contoso.com"],
    "words": ["okta", "sharepoint", "jira", "login", "vpn", "webex"],
    "names": ["Priya Raghunathan", "Jürgen Müller", "Katarzyna Wojciechowska", "Zhang Wei"],
    "emoji": ["👍", "😀😀", "❤️", "!!!", "", " "],
}
TEXTS = st.lists(st.text() | st.sampled_from([t for rows in TABLES.values() for t in rows]))
KNOWN, UNKNOWN = (
    st.sampled_from(WORDS),
    st.sampled_from(["zebra", "okapi", "größe", "лифт", "電車"]),
)


@pytest.fixture(scope="module", params=[MINILM, STUDENT])
def encoder(request) -> Encoder:
    return read_encoder(request.param)


def is_said(encoder, texts, caplog) -> bool:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "qpr_jax"):
        say_unknown_words(encoder, texts)
    return MULTILINGUAL in caplog.text


@pytest.mark.parametrize("language", TABLES)
def test_says_so_of_a_table_in_another_language(encoder, language, caplog):
    assert is_said(encoder, TABLES[language] * 3, caplog)


@pytest.mark.parametrize("kind", ENGLISH)
def test_says_nothing_of_an_english_table_or_without_words(encoder, kind, caplog):
    assert not is_said(encoder, ENGLISH[kind] * 10, caplog)


def test_says_nothing_of_a_few_rows_in_another_language(encoder, caplog):
    rows = ["How can I change my password?", "Where can i see the invoice", "Is it still open?"]
    assert not is_said(encoder, rows * 3 + TABLES["German"], caplog)


def test_some_rows_in_another_language_are_counted(encoder, caplog):
    rows = ["How can I change my password?", "Where can i see the invoice", "Is it still open?"]
    others = ["Wo finde ich meine rechnung", "Warum wurde ich zweimal belastet?", "nicht da"]
    assert is_said(encoder, rows * 30 + others, caplog)
    assert "texts in another language, such as 'Wo finde ich meine rechnung': 2 of" in caplog.text
    assert not is_said(encoder, rows * 30 + others[:1], caplog)


def test_a_few_unknown_words_do_not_decide(caplog):
    text = f"{WORDS[0]} zebra"
    assert not is_said(cnn_encoder(), [text], caplog)
    assert is_said(cnn_encoder(), [text] * 60, caplog)


@hypothesis.given(TEXTS)
def test_takes_any_texts_in_any_order(texts):
    encoder = cnn_encoder()
    unknown, words = count_unknown(encoder, texts)
    assert 0 <= unknown <= words
    assert count_unknown(encoder, texts[::-1]) == (unknown, words)


@hypothesis.given(TEXTS, st.sampled_from(["SM-G991B", "a@b.org", "Zoë", "42", "x/y", "👍", "VPN"]))
def test_codes_and_names_do_not_count(texts, code):
    encoder = cnn_encoder()
    longer = [f"{text} {code}" for text in texts]
    assert count_unknown(encoder, longer) == count_unknown(encoder, texts)


@hypothesis.given(st.lists(KNOWN, min_size=3), st.lists(UNKNOWN, min_size=3))
def test_counts_what_the_vocabulary_lacks(known, unknown):
    encoder = cnn_encoder(vocabulary=dataclasses.replace(VOCABULARY, subwords=True))
    assert count_unknown(encoder, [" ".join(known)])[0] == 0
    assert count_unknown(encoder, [" ".join(unknown)]) == (len(unknown),) * 2
    unknown_in_both, words = count_unknown(encoder, [" ".join([*known, *unknown])])
    assert unknown_in_both == len(unknown) <= words


def test_plain_words_are_in_lower_case_and_long():
    assert plain_words("Der Drucker (HP-12) druckt nicht mehr: im e.V. /tmp/x größer ö") == [
        "druckt",
        "nicht",
        "mehr",
        "größer",
        "ö",
    ]
    assert plain_words("HPで印刷しません。") == ["で印刷しません"]


def test_says_nothing_of_encoders_of_many_languages_and_of_ones_own(caplog):
    minilm = read_encoder(MINILM)
    german = TABLES["German"] * 10
    assert is_said(minilm, german, caplog)
    trained = dataclasses.replace(minilm, settings={"data.parallel": "en-de:x.tsv"})
    many = dataclasses.replace(minilm, vocabulary_size=119_547)  # as multilingual BERT

    class Custom(Encoder):
        fingerprint, dimension = "custom", 2

    assert not any(is_said(other, german, caplog) for other in (trained, many, Custom()))
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
    unigram = json.dumps({"version": "1.0", "added_tokens": [], "model": model})
    assert WordPieces(unigram.encode(), 2).known_words(["a"]) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda rows: find_duplicates(rows, encoder=STUDENT),
        lambda rows: find_duplicates(rows[:2], against=rows[2:], encoder=STUDENT),
        lambda rows: Retriever.build(rows, encoder=STUDENT),
    ],
)
def test_each_call_says_it_once(call, caplog):
    call(TABLES["German"] + TABLES["Spanish"] + TABLES["Russian"])
    assert sum(MULTILINGUAL in record.getMessage() for record in caplog.records) == 1
    assert "% of the words" in caplog.text
    caplog.clear()
    call(["where is my order", "how do i get a refund", "can you ship it to another address"])
    assert MULTILINGUAL not in caplog.text
