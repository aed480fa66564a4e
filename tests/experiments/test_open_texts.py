"""The texts that the packaged encoder learns from: readers of formats, and what is left out."""

import argparse
import bz2
import gzip
import pathlib
import struct
import zipfile

import pytest

from experiments.open_texts import (
    OUT,
    missing_packages,
    new_lines,
    package_texts,
    read_sources,
    reserved_keys,
    sampled,
)
from experiments.text_files import file_sentences, plain_message, sentences
from experiments.transfer_tables import in_training, make_table, read_tables, text_keys

PAGE = b"""<html><head><title>Not read</title></head><body><h1>Your orders</h1>
<p>Open <b>the cart</b> first. Then pay&nbsp;for it:<pre>$ pay --now the whole cart</pre>
<ul><li>Orders are sent by post.<li>Go to /usr/share/doc for more</ul>
<table><tr><td>one two three</td><td>This cell is a sentence.</td></tr></table></body></html>"""
MANUAL = rb""".TH CART 1
.SH NAME
cart \- fill a cart
.SH DESCRIPTION
The program
.I cart
fills a \fIshopping\fP cart.
.PP
It doesn\(aqt pay.
.TP
.B the tag of it
This is what it does.
.nf
some code in here
.fi
"""
RST = b"""Pay an order
============

Choose a card, see :ref:`the cards <cards>`,
and enter its **number**.

.. note:: nothing of this is read

    code is indented here

- The first way to pay.
- The second way to pay.
"""
DICTIONARY = b"""invoice

   1. <money> A {list} of goods
   and what they cost.
"""
TEMPLATES = b"""Template: cart/pay
Type: boolean
Description: Pay the order now?
 The order is paid at once
 if you choose so.
 .
 It can be paid later.
Description-de.UTF-8: Jetzt die Bestellung bezahlen?
"""
PO = rb"""msgid ""
msgstr ""
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

#. Default: "Forgot your "
#. "password?"
msgid "label_forgot"
msgstr ""

msgid "%d order was \"lost\""
msgid_plural ""
"%d orders were "
"lost today"
msgstr[0] "verloren"
"""
JSON = b"""{"cart": {"empty": "Your cart is empty", "of": ["Pay <b>now</b>"]}}"""
SCRIPT = rb"""export const en = { pay: 'Pay the order', lost: "It\'s lost {{name}}, sorry" };"""
PROPERTIES = b"""# a comment of the file
pay=Pay the \\
  order now
account-hello =
    Welcome to the shop
    .label = Log in here
"""
NOUNS = b"""  1 This software and database is provided under this licence
00001740 09 n 02 login 0 log_in 0 000 | the act of beginning (a session); "his login failed twice"
00002000 05 n 01 house_cat 0 000 | any domesticated member of the genus Felis
"""


def catalog(*messages: bytes) -> bytes:
    """Compile messages as gettext does, without translations."""
    start = 28 + 8 * len(messages)
    table = b""
    for message in messages:
        table += struct.pack("<II", len(message), start)
        start += len(message) + 1
    header = struct.pack("<IIIIIII", 0x950412DE, 0, len(messages), 28, 28, 0, 0)
    return header + table + b"".join(message + b"\0" for message in messages)


PACKED = gzip.compress(DICTIONARY, mtime=0)  # the time would be in the name of a test


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        (
            "page.html",
            PAGE,
            ["Open the cart first.", "Then pay for it:", "Orders are sent by post.",
             "This cell is a sentence."],
        ),
        ("index.cache.bz2", bz2.compress(b"<p>It is packed.</p>"), ["It is packed."]),
        (
            "cart.1.gz",
            gzip.compress(MANUAL, mtime=0),
            ["cart - fill a cart", "The program cart fills a shopping cart.", "It doesn't pay.",
             "This is what it does."],
        ),
        (
            "pay.rst",
            RST,
            ["Pay an order", "Choose a card, see the cards, and enter its number.",
             "The first way to pay.", "The second way to pay."],
        ),
        ("money.dict.dz", PACKED, ["A list of goods and what they cost."]),
        (
            "DEBIAN/templates",
            TEMPLATES,
            ["Pay the order now?", "The order is paid at once if you choose so.",
             "It can be paid later."],
        ),
        ("shop.pot", PO, ["Forgot your password?", 'order was "lost"', "orders were lost today"]),
        (
            "shop.mo",
            catalog(b"", b"menu\4_Pay now", b"%d cart here\0%d carts here"),
            ["Pay now", "cart here", "carts here"],
        ),
        ("en.json", JSON, ["Your cart is empty", "Pay now"]),
        ("en.js", SCRIPT, ["Pay the order", "It's lost, sorry"]),
        (
            "en.properties",
            PROPERTIES,
            ["Pay the order now", "Welcome to the shop", "Log in here"],
        ),
        (
            "wordnet/data.noun",
            NOUNS,
            ["his login failed twice", "the act of beginning", "log in"],  # no animals
        ),
        ("readme.pdf", b"This is not read.", []),
    ],
)  # fmt: skip
def test_sentences_of_a_file(tmp_path, name, data, expected):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    assert sorted(file_sentences(path)) == sorted(expected)


def test_an_archive_is_read_file_by_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "shop.xpi", "w") as archive:
        archive.writestr("locale/en.json", JSON)
        archive.writestr("image.svg", "<p>This is not read.</p>")
    assert len([*file_sentences(tmp_path / "shop.xpi")]) == 2


def test_sentences_are_cut_at_marks_and_code_is_left_out():
    text = "Use e.g. the menu. It is 3 p.m. now! The order (no. 3) costs $5.00 today. "
    text += "Run shop --now please. No."
    assert [*sentences([text])] == [
        "Use e.g. the menu.",
        "It is 3 p.m. now!",
        "The order (no. 3) costs $5.00 today.",
    ]
    assert not [
        *sentences(["zwei drei vier f\xfcnf", "1 2 3 4 5", "x = the value of y", "a " * 41])
    ]


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("_Open <b>File</b>...", "Open File..."),
        ("C&opy %1 of %(count)d files", "Copy of files"),
        ('Could not open "%s".', "Could not open."),
        ("Hello {{name}}, pay $1 now", "Hello, pay now"),
        ("Sent to %s", ""),  # says little without its field
        ("It is sent to", "It is sent to"),
        ("AT&T pays 50% of it", "AT&T pays 50% of it"),
    ],
)
def test_fields_tags_and_accelerators_are_removed(message, plain):
    assert plain_message(message) == plain


def test_sources_name_their_licence_and_what_a_folder_lacks(tmp_path):
    for source in read_sources():
        assert source["licence"]
        assert source["files"]
        assert [*missing_packages(source, tmp_path)]
    source = {"npm": ["@shop/messages"], "debian": ["shop-doc"], "files": ["*/en.json", "*.html"]}
    help_folder = tmp_path / "shop-doc/usr/share/help/C"
    for folder in (help_folder, tmp_path / "@shop/messages/i18n"):
        folder.mkdir(parents=True)
    (help_folder / "page.html").write_text("<p>Nothing of this folder is read.</p>")
    (tmp_path / "@shop/messages/i18n/en.json").write_bytes(JSON)
    (tmp_path / "@shop/messages/i18n/de.json").write_text('{"a": "Not read at all"}')
    assert not [*missing_packages(source, tmp_path)]
    assert sorted(package_texts(source, tmp_path)) == ["Pay now", "Your cart is empty"]


def test_no_text_of_a_table_stands_in_the_texts(tmp_path):
    words = [f"w{i}" for i in range(12)]
    (table,) = read_tables(argparse.Namespace(only="clinic", tables=None))
    tables = [table, make_table("long", [(" ".join(words), 0)])]
    reserved = {key for table in tables for text in table.texts for key in text_keys(text)}
    texts = [table.texts[0].upper(), "x " + " ".join(words[2:10]), " ".join(words[:7]), "Pay now!"]
    written = set[str]()
    lines = new_lines([*texts, "pay  now", ""], written, reserved)
    assert lines == ["Pay now!", " ".join(words[:7])]
    assert not any(in_training(table, lines) for table in tables)
    assert new_lines(["PAY NOW"], written, reserved) == []


@pytest.mark.slow
@pytest.mark.skipif(not OUT.is_file(), reason="needs the texts of `experiments.open_texts`")
def test_no_text_of_any_table_stands_in_the_texts_that_were_written(quora_file):
    data = quora_file.parents[1]
    options = argparse.Namespace(only=None, tables=None, sources=pathlib.Path(), data=data)
    reserved = reserved_keys(options)
    with OUT.open() as lines:
        assert sum(not reserved.isdisjoint(text_keys(line)) for line in lines) == 0


def test_a_sample_is_sorted_and_the_same_each_time():
    lines = [f"line {i:02}" for i in range(50)]
    some = sampled(lines, 20)
    assert some == sorted({*some}) == sampled(lines, 20)
    assert {*some} < {*lines}
    assert sampled(lines, 50) is sampled(lines, 60) is lines
    most = {source["name"]: source.get("most", 1) for source in read_sources()}
    assert most["Linux kernel"] == 10_000
    assert min(most.values()) > 0
