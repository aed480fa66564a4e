"""A page of failing queries as HTML that loads and runs nothing, or as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from qpr_jax.failures.analysis import Analysis, Case
from qpr_jax.failures.differences import lacking, marked
from qpr_jax.failures.pages import Block, Examples, Heading, Table, blocks, labeled, place_of

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --paper: #fbfbfd; --quiet: #5c5f66;
  --line: #d5d7dd; --mark: #ffe49a; --wrong: #b3261e; --right: #1b6b36; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ec; --paper: #16171a; --quiet: #a2a6ae; --line: #3a3d44; --mark: #5c4a10;
    --wrong: #ff9d94; --right: #7fd69a; }
}
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; margin-top: 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; overflow-wrap: normal; font-variant-numeric: tabular-nums; }
thead th { color: var(--quiet); font-weight: normal; overflow-wrap: anywhere; min-width: 4rem; }
details { border-bottom: 1px solid var(--line); padding: .4rem 0; }
summary { cursor: pointer; }
article { margin: 1rem 0; padding-left: .8rem; border-left: 3px solid var(--line); }
article p, dl { margin: 0; }
article > p { font-weight: 600; }
dt { margin-top: .3rem; font-size: .85rem; color: var(--quiet); }
dd { margin: 0; }
small { color: var(--quiet); }
mark { background: var(--mark); color: inherit; border-radius: .2em; }
.wrong { color: var(--wrong); } .right { color: var(--right); }
"""


def as_html(analysis: Analysis, examples: int) -> str:
    """A page of its own, in light or dark, which loads nothing and runs nothing."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">",
        f"<title>Queries that fail</title><style>{_STYLE}</style></head>",
        "<body><main>",
        *(_html_of(block, analysis.runs) for block in blocks(analysis, examples)),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _html_of(block: Block, runs: Sequence[str]) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Table(head, rows):
            columns = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
            lines = (
                f'<tr><th scope="row">{html.escape(first)}</th>'
                + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
                + "</tr>"
                for first, *cells in rows
            )
            return (
                f'<div class="wide"><table><thead><tr>{columns}</tr></thead>\n<tbody>'
                + "\n".join(lines)
                + "</tbody></table></div>"
            )
        case Examples(title, total, cases):
            return (
                f"<details><summary>{html.escape(title)} <small>({len(cases):,} of {total:,})"
                "</small></summary>\n"
                + "\n".join(_html_case(case, runs) for case in cases)
                + "</details>"
            )
        case text:
            return f"<p>{html.escape(text)}</p>"


def _html_case(case: Case, runs: Sequence[str]) -> str:
    rows = [(labeled("paraphrase", case.groups), _html_marked(case.paraphrase, case.question))]
    for run, answer, mistake in zip(runs, case.answers, case.mistakes, strict=True):
        verdict = "wrong" if answer.failed else "right"
        shown = (
            f'<b class="{verdict}">{verdict}</b> <small>{answer.first.distance:.3f}</small> '
            + _html_marked(answer.first.question, case.question)
        )
        if answer.failed:
            shown += f"<br><small>{place_of(answer, case)}</small>"
            if answer.paraphrase and answer.paraphrase.id != case.paraphrase_id:
                shown += " " + _html_marked(answer.paraphrase.question, case.question)
        rows.append((labeled(run, mistake), shown))
    listed = "".join(f"<dt>{html.escape(name)}</dt><dd>{shown}</dd>" for name, shown in rows)
    return f'<article><p dir="auto">{html.escape(case.question)}</p><dl>{listed}</dl></article>'


def _html_marked(text: str, query: str) -> str:
    pieces = (
        f"<mark>{html.escape(piece)}</mark>" if differs else html.escape(piece)
        for piece, differs in marked(text, query)
    )
    shown = f'<span dir="auto">{"".join(pieces)}</span>'
    if words := lacking(text, query):
        shown += f" <small>lacks <bdi>{html.escape(' '.join(words))}</bdi></small>"
    return shown


def as_markdown(analysis: Analysis, examples: int) -> str:
    """The page as Markdown; texts are shown as they are, whatever they hold."""
    parts = (_markdown_of(block, analysis.runs) for block in blocks(analysis, examples))
    return "\n\n".join(parts) + "\n"


def _markdown_of(block: Block, runs: Sequence[str]) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {_plain(text)}"
        case Table(head, rows):
            lines = [head, ["---"] * len(head), *rows]
            return "\n".join(f"| {' | '.join(map(_plain, line))} |" for line in lines)
        case Examples(title, total, cases):
            return (
                f"#### {_plain(title)} ({len(cases):,} of {total:,})\n\n"
                + "\n".join(_markdown_case(case, runs) for case in cases)
            ).rstrip()
        case text:
            return _plain(text)


def _markdown_case(case: Case, runs: Sequence[str]) -> str:
    lines = [
        f"- query: {_plain(case.question)}",
        f"  - {labeled('paraphrase', case.groups)}: "
        + _markdown_marked(case.paraphrase, case.question),
    ]
    for run, answer, mistake in zip(runs, case.answers, case.mistakes, strict=True):
        first = _markdown_marked(answer.first.question, case.question)
        line = (
            f"  - {_plain(labeled(run, mistake))}: {'wrong' if answer.failed else 'right'}, "
            f"{answer.first.distance:.3f}: {first}"
        )
        if answer.failed:
            line += f"; {place_of(answer, case)}"
            if answer.paraphrase and answer.paraphrase.id != case.paraphrase_id:
                line += f": {_markdown_marked(answer.paraphrase.question, case.question)}"
        lines.append(line)
    return "\n".join(lines)


def _markdown_marked(text: str, query: str) -> str:
    pieces = (
        f"**{_plain(piece)}**" if differs else _plain(piece)
        for piece, differs in marked(" ".join(text.split()), query)
    )
    words = lacking(text, query)
    return "".join(pieces) + (f" (lacks {_plain(' '.join(words))})" if words else "")


def _plain(text: str) -> str:
    """A text of one line that Markdown shows as it is."""
    text = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
