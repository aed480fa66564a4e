"""The code of README.md and docs/: each block runs, in order, and prints what the page says.

Blocks of a page share a folder, and those in Python their names. A block `text` is what the one
before it prints; `...` stands for what differs. Of comments, `<!-- setup: COMMANDS -->` is run like
a block, `<!-- not run: WHY -->` before a block leaves it out, and `<!-- nightly: WHY -->` makes the
page a slow test. A block that begins with `# not run: WHY` or `pip install` is left out, too.
"""

import contextlib
import doctest
import io
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

from qpr_jax.cli import main
from tests.xla import QUICK_XLA

ROOT = pathlib.Path(__file__).parent.parent
GUIDES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/*.md"))
PAGES = ["README.md", *GUIDES]
SHOWN = {"", "ini", "json", "nginx", "text", "toml", "yaml"}  # not run
COMPOSED = re.compile(r"[|<>&;$(]")  # of a line that only a shell can run
SECONDS = 1800


class Block(NamedTuple):
    language: str
    code: str
    line: int
    expected: str | None  # output
    skip: bool


def blocks(page: str) -> list[Block]:
    tokens = MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8"))
    found: list[Block] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "code_block":
            raise ValueError(f"{page}:{token.map[0] + 1}: fence this block and name its language")
        setup = re.match(r"<!-- setup: (.*?)-->", token.content, re.DOTALL)
        if token.type == "html_block" and setup:
            found.append(Block("bash", setup[1], token.map[0] + 1, None, False))
        if token.type != "fence":
            continue
        comment = before.content if before is not None and before.type == "html_block" else ""
        skip = re.match(r"<!-- not run: \S.* -->", comment) is not None
        skip |= token.content.startswith(("# not run: ", "pip install "))
        if token.info == "text" and found and before.type == "fence":
            found[-1] = found[-1]._replace(expected=token.content)
        else:
            found.append(Block(token.info, token.content, token.map[0] + 1, None, skip))
    return found


def is_nightly(page: str) -> bool:
    return "\n<!-- nightly: " in (ROOT / page).read_text(encoding="utf-8")


def run_bash(code: str, folder: pathlib.Path, group: list[int]) -> str:
    """The output of a script; what it leaves running joins `group`."""
    # One device, as users have: each of several would hold and update all parameters.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": QUICK_XLA}
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{environment['PATH']}"
    with (folder / ".output").open("w+") as output, (folder / ".errors").open("w+") as errors:
        script = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", code],
            **{"cwd": folder, "env": environment, "stdout": output, "stderr": errors},
            start_new_session=True,
        )
        group.append(script.pid)
        status = script.wait(SECONDS)
        output.seek(0)
        errors.seek(0)
        assert status == 0, f"{code}\n{output.read()}\n{errors.read()}"
        return output.read()


def run_lines(lines: list[str], folder: pathlib.Path, group: list[int]) -> str:
    """The output of commands, a line each.

    `qpr` runs in this process, which has its packages, and trains few steps on one device.
    """
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in lines:
            words = shlex.split(line, comments=True)
            if words[:1] != ["qpr"]:
                output.write(run_bash(line, folder, group))
                continue
            few = ["--set", "devices=1", "--set", "max_steps=5"] if words[1] == "train" else []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", words + few)
                assert main.main() == 0, line
    return output.getvalue()


def check(page: str, folder: pathlib.Path) -> None:
    names: dict[str, object] = {"__name__": "guide"}
    group: list[int] = []
    same = doctest.OutputChecker().check_output
    try:
        for block in blocks(page):
            where = f"{page}:{block.line}"
            assert block.language in SHOWN | {"bash", "python"}, f"{where}: no known language"
            if block.skip or block.language in SHOWN:
                continue
            lines = block.code.replace("\\\n", "").splitlines()
            if block.language == "bash" and not any(map(COMPOSED.search, lines)):
                got = run_lines(lines, folder, group)
            elif block.language == "bash":
                got = run_bash(block.code, folder, group)
            else:
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(block.code, where, "exec"), names)
                got = output.getvalue()
            if block.expected is not None:
                assert same(block.expected, got, doctest.ELLIPSIS), f"{where} printed\n{got}"
    finally:
        for leader in group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow) if is_nightly(p) else p for p in PAGES],
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))  # not the user's
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # `qpr` shall not start again
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    check(page, tmp_path)
