"""HTML in a text: what a reader of the page sees of it."""

from __future__ import annotations

import html
import itertools
import re

from qpr_jax.text.tokenizer import tokenize

_INLINE = (
    "a|abbr|acronym|audio|b|bdi|bdo|big|button|canvas|cite|code|data|del|dfn|em|embed|font|i|iframe"
    "|input|ins|kbd|label|map|mark|marquee|meter|object|output|picture|progress|q|rp|rt|ruby|s|samp"
    "|select|slot|small|source|span|strike|strong|sub|sup|svg|template|textarea|time|tt|u|var|video"
    "|wbr|[a-z]\\w*(?:-\\w+)+|[a-z]\\w*:[a-z]\\w*"  # elements of pages, and of namespaces as o:p
)
_BLOCK = (
    "address|article|aside|blockquote|body|br|caption|center|col|colgroup|dd|details|dialog|dir|div"
    "|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]|head|header|hgroup|hr|html|img|legend|li"
    "|link|main|menu|meta|nav|noscript|ol|optgroup|option|p|pre|search|section|summary|table|tbody"
    "|td|tfoot|th|thead|tr|ul"
)
_SCRIPT = re.compile(r"<(script|style|title)\b|(<!--)", re.IGNORECASE)
_SCRIPT_ENDS = {
    name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in ("script", "style", "title")
} | {"<!--": re.compile("-->")}
_ANY = rf"(?:{_INLINE}|{_BLOCK})"
_REST = r"(?:\s[^<>]*)?/?>"
_TAG = re.compile(rf"</?({_ANY}){_REST}", re.IGNORECASE)
_BLOCK_TAG = re.compile(rf"</?(?:{_BLOCK}){_REST}", re.IGNORECASE)
# What is around a document, and an element of any name around all of a text.
_DECLARED = re.compile(
    r"<!doctype\b[^<>]*>|<\?xml\b[^<>]*>|<!\[(?:CDATA\[|[^<>\[\]]*\]>)|\]\]>", re.I
)
_WHOLE = re.compile(r"\s*<([a-z][\w:.-]*)(?:\s[^<>]*)?>.*</\1\s*>\s*", re.IGNORECASE | re.DOTALL)
# What makes a text one of HTML: words in tags that come in pairs, a block that begins or ends right
# at a word, or an attribute. Else a tag is what the text is about: "Is <b> bold?", Box<a>.
_OPENED = re.compile(rf"<({_ANY}){_REST}(?=[^\s<])", re.IGNORECASE)
_CLOSED = re.compile(rf"(?<=[^\s>])</({_ANY})\s*>", re.IGNORECASE)
_AT_WORD = re.compile(rf"{_BLOCK_TAG.pattern}(?=\w)|(?<=\w){_BLOCK_TAG.pattern}", re.IGNORECASE)
_LONG_TAG = re.compile(rf"<{_ANY}(\s[^<>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\w=[\"'\w]")
_SUPERSCRIPT = re.compile(rf"<sup{_REST}(?=\s*\d)", re.IGNORECASE)
_NAMED = re.compile(r"<(?:a|img)\s[^<>]*>", re.IGNORECASE)  # has content in its attributes
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z]{2,8});", re.IGNORECASE)
_LONE_ENTITY = re.compile(rf"(?<!\S)(?!&amp;){_ENTITY.pattern}(?!\S)", re.IGNORECASE)


def without_html(text: str) -> str:
    """Remove the tags of HTML, and replace entities by their characters."""
    if "<" in text and _is_markup(text):
        bounds = [0, *itertools.chain.from_iterable(_scripts(text)), len(text)]
        kept = (text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
        plain = _SUPERSCRIPT.sub("^", _DECLARED.sub("", "\n".join(kept)))
        if _is_element(plain):
            plain = plain[plain.index(">") + 1 : plain.rindex("</")]
        text = html.unescape(_TAG.sub("", _BLOCK_TAG.sub("\n", plain))).strip() or text
    # A blank between blanks is what a text is about; an entity that is a word or a sign is read.
    elif "&" in text and all(
        tokenize(html.unescape(lone), signs=True) for lone in _LONE_ENTITY.findall(text)
    ):
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text).strip() or text
    return text


def _is_markup(text: str) -> bool:
    opened = {name.lower() for name in _OPENED.findall(text)}
    closed = {name.lower() for name in _CLOSED.findall(text)}
    if not opened.isdisjoint(closed) or _AT_WORD.search(text) or _is_element(text):
        return True
    start, end = text.lstrip()[:2], text.rstrip()[-3:]
    if start in ("<!", "<?") and (_DECLARED.match(text.lstrip()) or "-->" in text):
        return True
    if end == "-->" and "<!--" in text:
        return True
    return any(_ATTRIBUTE.search(tag[1]) for tag in _LONG_TAG.finditer(text))


def _is_element(text: str) -> bool:
    """Return whether a text is one element of any name."""
    whole = _WHOLE.fullmatch(text)
    return whole is not None and text.lower().count(f"</{whole[1].lower()}") == 1


def _scripts(text: str) -> list[tuple[int, int]]:
    """Find where scripts, styles, titles and comments begin and end."""
    found: list[tuple[int, int]] = []
    endless = set()  # names: what has no end is looked for once
    for tag in _SCRIPT.finditer(text):
        name = (tag[1] or tag[2]).lower()
        if name in endless or (found and tag.start() < found[-1][1]):
            continue
        if end := _SCRIPT_ENDS[name].search(text, tag.end()):
            found.append((tag.start(), end.end()))
        else:
            endless.add(name)
    return found


def unread_parts(text: str) -> frozenset[str]:
    """Return the tags within a text, and what a reader of the page does not see."""
    if "<" not in text or not _is_markup(text):
        return frozenset()
    left = {text[start:end] for start, end in _scripts(text)} | {*_NAMED.findall(text)}
    pieces = re.split(_TAG, text)
    filled = [at for at, piece in enumerate(pieces[::2]) if piece.strip()] or [0]
    return frozenset(left | {name.lower() for name in pieces[1::2][filled[0] : filled[-1]]})
