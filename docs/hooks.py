"""Hooks of MkDocs: pages from outside docs/, and links between all of them.

Files keep the links that work in a checkout. In the site README.md is the first page, the pages of
docs/ are at the top, and those of results/ and deploy/ in folders of these names. A link to a file
that the site lacks, such as code, becomes its text.
"""

from __future__ import annotations

import pathlib
import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = pathlib.Path(__file__).parent.parent
_OTHERS = (
    *("*.md", "deploy/*.md"),
    *(
        "results/README.md",
        "results/*/README.md",
        "results/*/report.md",
        "results/**/*.png",
    ),
)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def _address(path: str) -> str:
    """Where the site has the file of this path in the repository."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of other folders."""
    for pattern in _OTHERS:
        for path in sorted(_ROOT.glob(pattern)):
            name = path.relative_to(_ROOT).as_posix()
            files.append(File.generated(config, _address(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to the files of the site."""
    here = page.file.src_uri
    source = pathlib.Path(page.file.abs_src_path or "").resolve().relative_to(_ROOT)

    def link(found: re.Match[str]) -> str:
        picture, text, target, heading = found.groups(default="")
        if not target or ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(source.parent.as_posix(), target))
        if files.get_file_from_path(_address(path)) is None:
            return text
        to = posixpath.relpath(_address(path), posixpath.dirname(here) or ".")
        return f"{picture}[{text}]({to}{heading})"

    # Comments are for those who write the pages; mkdocstrings would take `[0]` for a reference.
    return _LINK.sub(link, _COMMENT.sub("", markdown))
