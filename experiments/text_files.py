"""Read the sentences of documentation and message files, by their format.

A reader takes the text of a file and yields paragraphs, titles or messages. Of these, plain English
sentences, questions, titles and short messages are cut.
"""

from __future__ import annotations

import bz2
import gzip
import json
import pathlib
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from typing import Any

Reader = Callable[[bytes], Iterator[str]]
PACKED = {".gz": gzip.decompress, ".dz": gzip.decompress, ".bz2": bz2.decompress}
_SKIPPED = {"script", "style", "pre", "nav", "head", "textarea", "svg"}
_UNUSED = {"05", "15", "18", "20"}  # WordNet's files of animals, places, persons, plants
_PASSAGE = re.compile("p|li|dt|dd|div|section|br|hr|td|th|blockquote|table|h[1-6]")

MOST = 40  # words
# A sentence ends at a mark that a capital follows, but not after these abbreviations.
_END = re.compile(
    r"(?<=[.!?:])(?<!e\.g\.)(?<!i\.e\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\b[A-Z]\.)(?<!Mr\.)(?<!Dr\.)"
    r"[\"')\]]*\s+(?=[\"'(\[]*[A-Z])"
)
_TAG = re.compile(r"<[^<>]*>")
# Fields that a program fills: %s, %(name)s, %1, %1$s, {name}, {{name}}, ${name}, $1.
_FIELD = re.compile(
    r"\$?\{+[^{}]*\}+|%\([^)]*\)[a-z]|%[-\d.$]*(?:l+[dux]|[a-zA-Z@])(?![a-z])|%L?\d|\$(?:\d(?![\d.])|[A-Za-z_]\w*)"
)
_ACCELERATOR = re.compile(r"(?<![\w&])[_&](?=\w)|(?<=\w)[_&](?=[a-z])")
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u00a0\u2013\u2014\u2026", "''\"\" --.")
_LOOSE = re.compile(r"\(\s*\)|\[\s*\]|\"\s*\"|'\s*'|`\s*'")
# Where a field is missing.
_OPEN = re.compile(
    r"\b(?:a|an|and|are|as|at|by|for|from|in|is|of|on|or|than|that|the|to|was|with)\W*$",
    re.IGNORECASE,
)
# What code, options, paths, addresses and tables have.
_CODE = re.compile(
    r"[{}<>\\|=~^@#*+`\[\]]|\$(?!\d)|::|://|\w_\w|\(\)|(?<!\S)-{1,2}\w|\w/\w+/|(?<!\w)/\w|"
    r"(?<!\b[A-Za-z])\.[A-Za-z]"
)
_PLAIN = re.compile(r"[A-Za-z .,:?!'-]")
_COMMON = re.compile(
    r"\b(the|an?|of|to|in|is|are|be|for|and|or|not|with|you|your|this|that|it|on|as|by|from|can|"
    r"if|when|will|was|have|has|no|all|at|do|does|use|which|we|i|how|what)\b",
    re.IGNORECASE,
)


class _Passages(HTMLParser):
    """Collects the text between the tags of blocks; of tables, what ends with a mark."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.text: list[str] = []
        self.skipped: list[str] = []
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in _SKIPPED:
            self.skipped.append(tag)
        if _PASSAGE.fullmatch(tag) or tag in _SKIPPED:
            self.end()
        self.tables += tag == "table"

    def handle_endtag(self, tag: str) -> None:
        if tag in self.skipped:
            del self.skipped[self.skipped.index(tag) :]
        if _PASSAGE.fullmatch(tag):
            self.end()
        self.tables -= tag == "table" and self.tables > 0

    def handle_data(self, data: str) -> None:
        if not self.skipped:
            self.text.append(data)

    def end(self) -> None:
        """Begin another passage."""
        text = "".join(self.text).replace("\xb6", "").strip()
        if not self.tables or text.endswith((".", "?", "!")):
            self.found.append(text)
        self.text = []


def read_html(data: bytes) -> Iterator[str]:
    """Read the paragraphs, titles and items of a page; tables and code are left out."""
    parser = _Passages()
    parser.feed(_decoded(data))
    parser.close()
    parser.end()
    yield from parser.found


def read_man(data: bytes) -> Iterator[str]:
    """Read the paragraphs of a manual page of the macros `man`, without code and tags."""
    paragraph, in_code, tag_follows = list[str](), False, False
    for line in _decoded(data).splitlines():
        macro, _, rest = line.partition(" ")
        if macro in (".nf", ".EX", ".TS"):
            in_code = True
        elif macro in (".fi", ".EE", ".TE"):
            in_code = False
        elif macro in (".B", ".I", ".BR", ".IR", ".BI", ".IB", ".RB", ".RI", ".SM"):
            words = rest.replace('"', "")
            line = words if macro in (".B", ".I", ".SM") else "".join(words.split())
        if line.startswith((".", "'")) or not line.strip():
            yield _without_fonts(" ".join(paragraph))
            paragraph = []
            tag_follows = macro in (".TP", ".TQ")
        elif tag_follows:  # the line after .TP names what the paragraph is about
            tag_follows = False
        elif not in_code:
            paragraph.append(line)
    yield _without_fonts(" ".join(paragraph))


def _without_fonts(text: str) -> str:
    text = re.sub(r"\\f(?:\[\w*\]|\(..|.)|\\s[-+]?\d|\\&|\\[|^/,]|\\c|\\\".*", "", text)
    text = re.sub(
        r"\\\((?:aq|cq|oq)|\\\[aq\]", "'", re.sub(r"\\\((?:lq|rq)|\\\[[lr]q\]", '"', text)
    )
    return re.sub(r"\\(?:\(em|\[em\])", " - ", text).replace("\\-", "-").replace("\\ ", " ")


def read_text(data: bytes) -> Iterator[str]:
    """Read the paragraphs of plain text, reStructuredText or Markdown; code is indented."""
    for block in re.split(r"\n\s*\n", _decoded(data)):
        lines = block.strip("\n").splitlines()
        if not lines or lines[0].startswith(("    ", "\t", "..", "```", "|")):
            continue
        if len(lines) > 1 and re.fullmatch(r"([-=~^\"'*#+])\1{2,}", lines[1].strip()):
            yield lines[0]  # a title and its underline
            lines = lines[2:]
        text = " ".join(re.sub(r"^\s*(?:[-*#]+|\d+\.)\s", "\n", line) for line in lines)
        text = re.sub(r":\w+:`([^`<]*?)\s*(?:<[^`]*)?`|\[([^][]*)\]\([^)]*\)", r"\1\2", text)
        yield from re.sub(r"\*\*|``?|(?<!\w)_|_(?!\w)", "", text).split("\n")


def read_dictionary(data: bytes) -> Iterator[str]:
    """Read the paragraphs below the headwords of a dictionary in the format of dictd."""
    for block in re.split(r"\n\s*\n", _decoded(data)):
        if block.startswith("   "):
            text = re.sub(r"[{}]|<[^<>]*>|^\s*(?:\d+\.|\[[^]]*\])", "", block.strip())
            yield re.sub(r"^\s*\d+\.\s", "", text)


def read_templates(data: bytes) -> Iterator[str]:
    """Read the questions of debconf, and what explains them."""
    for found in re.finditer(r"^Description: (.*)\n((?: .*\n)*)", _decoded(data), re.MULTILINE):
        yield found[1]
        yield from re.split(r"\n \.\n", found[2])


def read_wordnet(data: bytes) -> Iterator[str]:
    """Read the examples, definitions and entries of several words of WordNet.

    Source: wndb(5WN), https://wordnet.princeton.edu/documentation/wndb5wn
    """
    for line in _decoded(data).splitlines():
        if line.startswith("  "):  # the licence
            continue
        fields, _, gloss = line.partition(" | ")
        _, file, _, count, *words = fields.split()
        yield from re.findall(r'"([^"]{8,200})"', gloss)
        if file not in _UNUSED:
            yield re.sub(r'"[^"]*"|\([^)]*\)', "", gloss).strip(" ;:")
            yield from (word.replace("_", " ") for word in words[: 2 * int(count, 16) : 2])


def read_po(data: bytes) -> Iterator[str]:
    """Read the messages of a gettext catalog; where one has but a name, its comment `Default:`."""
    text = re.sub(r'"\s*\n(?:#\.\s)?"', "", _decoded(data))
    for found in re.finditer(r'^(?:msgid(?:_plural)?|#\. Default:) "(.+)"$', text, re.MULTILINE):
        yield re.sub(r"\\(.)", r"\1", found[1].replace("\\n", " "))


def read_mo(data: bytes) -> Iterator[str]:
    """Read the messages of a compiled catalog of gettext as the program has them.

    Source: https://www.gnu.org/software/gettext/manual/html_node/MO-Files.html
    """
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, table = struct.unpack_from(f"{order}8xII", data)
    for number in range(count):
        length, start = struct.unpack_from(f"{order}II", data, table + 8 * number)
        message = data[start : start + length].decode("utf-8", "replace")
        yield from message.rpartition("\x04")[2].split("\0")


def read_json(data: bytes) -> Iterator[str]:
    """Read all strings of a JSON file, which may have comments of one line."""
    pending = [
        json.loads(re.sub(r"^\s*//.*", "", _decoded(data), flags=re.MULTILINE), strict=False)
    ]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            pending += value.values() if isinstance(value, dict) else value


def read_quoted(data: bytes) -> Iterator[str]:
    """Read the quoted values of a message file in a language such as JavaScript, PHP or DTD."""
    pattern = r"""(?:[:=,(]|ENTITY\s+[\w.]+)\s*(["'`])((?:\\.|(?!\1)[^\\])+)\1"""
    for found in re.finditer(pattern, _decoded(data)):
        yield re.sub(r"\\(.)", r"\1", found[2].replace("\\n", " "))


def read_properties(data: bytes) -> Iterator[str]:
    """Read the values of a file of lines `name = value` or `name: value` (Java, Fluent, YAML)."""
    lines = re.sub(r"\\\r?\n\s*", " ", _decoded(data)).splitlines()
    value = ""
    for line in lines:
        found = re.match(r"""\s*(?:[.\w-]+\s*[=:]|\*?\[\w+\])\s?(.*)$""", line)
        if found or not line[:1].isspace():
            yield value
            value = found[1].strip(" \"'") if found else ""
        else:
            value += " " + line.strip()
    yield value


# The readers by the end of a file's name, and whether it has messages.
FORMATS: tuple[tuple[str, Reader, bool], ...] = (
    (r"\.x?html?(?:\.en)?$|\.cache$", read_html, False),
    (r"\.[1-8]\w*$", read_man, False),
    (r"\.(?:txt|rst|md)$", read_text, False),
    (r"\.dict$", read_dictionary, False),
    (r"(?:^|/)templates$", read_templates, False),
    (r"/data\.(?:noun|verb|adj|adv)$", read_wordnet, True),
    (r"\.pot?$", read_po, True),
    (r"\.mo$", read_mo, True),
    (r"\.json$", read_json, True),
    (r"\.(?:m?js|php|inc|strings|dtd)$", read_quoted, True),
    (r"\.(?:properties|ftl|ya?ml)$", read_properties, True),
)


def sentences(passages: Iterable[str], fewest: int = 3) -> Iterator[str]:
    """Yield the sentences of passages that have `fewest` to 40 words and are no code."""
    for passage in passages:
        text = " ".join(passage.translate(_QUOTES).split())
        for part in _END.split(text):
            sentence = re.sub(r"\s*\.{2,}$", "", part.strip(" -"))
            if is_sentence(sentence, fewest):
                yield sentence


def is_sentence(text: str, fewest: int = 3) -> bool:
    """Return whether a text is English of a fitting length, and no code."""
    words = text.split()
    return (
        fewest <= len(words) <= MOST
        and text.isascii()
        and (text[0].isalnum() or text[0] in "\"'(")
        and not _CODE.search(text)
        and text.count('"') % 2 == 0
        and text.count("(") == text.count(")")
        and len(_PLAIN.findall(text)) >= 0.8 * len(text)
        and sum(word.isupper() and len(word) > 1 for word in words) <= len(words) / 2
        and (len(words) < 8 or _COMMON.search(text) is not None)
    )


def plain_message(text: str) -> str:
    """Remove tags, accelerators and fields from a message; it is empty if it says little then."""
    text = _TAG.sub(" ", text)
    filled = _FIELD.sub(" ", text)
    plain = " ".join(_LOOSE.sub(" ", _ACCELERATOR.sub("", filled)).split())
    plain = re.sub(r"\s+(?=[.,;:?!)])", "", plain)
    return "" if filled != text and _OPEN.search(plain) else plain


def file_sentences(path: pathlib.Path) -> Iterator[str]:
    """Yield the sentences of a file, or of the files of a zip archive, such as an .xpi."""
    if path.suffix in (".xpi", ".zip"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield from _sentences(name, archive.read(name))
    else:
        yield from _sentences(str(path), path.read_bytes())


def _sentences(name: str, data: bytes) -> Iterator[str]:
    for suffix, opened in PACKED.items():
        if name.endswith(suffix):
            name, data = name.removesuffix(suffix), opened(data)
    for pattern, read, of_messages in FORMATS:
        if re.search(pattern, name):
            if of_messages:
                yield from sentences(map(plain_message, read(data)), fewest=2)
            else:
                yield from sentences(read(data))
            return


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8", "replace").lstrip("\ufeff")
