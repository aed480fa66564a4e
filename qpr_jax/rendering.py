"""HTML and Markdown from the Jinja2 templates in `templates/`, with every value escaped."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jinja2
from markupsafe import Markup

# Control characters but the tab and the line ends, which HTML and Markdown read as blanks.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")


def render(template: str, **context: Any) -> str:
    """Render `templates/TEMPLATE`, whose name ends in .html or .md, with these variables.

    Every value that a template prints is shown as it is, whatever it contains. In a Markdown
    template, do not use filters that join or replace text (they escape it as HTML): write a loop.
    """
    environment = _ENVIRONMENTS[pathlib.PurePath(template).suffix]
    return environment.get_template(template).render(context)


def escape_markdown(value: object) -> Markup:
    """Escape a value as one line of Markdown that shows it as it is."""
    if isinstance(value, Markup):
        return value
    text = _one_line(value)
    return Markup(_MARKDOWN.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;")))


def markdown_code(value: object) -> Markup:
    """Return a value as inline code in a cell of a Markdown table."""
    text = _one_line(value).replace("|", r"\|")
    if "`" not in text:
        return Markup(f"`{text}`")
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return Markup(f"{fence} {text} {fence}")


def _one_line(value: object) -> str:
    return _CONTROL.sub("\ufffd", re.sub(r"\s+", " ", str(value)))


def _printable(value: object) -> object:
    """Replace control characters of a string by U+FFFD; return other values as they are."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub("\ufffd", value)
    return value


def _environment(finalize: Any) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
        autoescape=True,  # escapes as HTML what `finalize` did not mark as escaped
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"thousands": "{:,}".format, "code": markdown_code}
    return environment


_ENVIRONMENTS = {".html": _environment(_printable), ".md": _environment(escape_markdown)}
