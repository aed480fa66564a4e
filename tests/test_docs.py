"""What the pages say exists: settings, options, configs, programs, files."""

import importlib.util
import pathlib
import re
import runpy
import tomllib

import click
import pytest

from qpr_jax.cli.commands import qpr
from qpr_jax.training.config import declarations
from qpr_jax.training.overrides import load_config, override, require_name
from qpr_jax.training.presets import PRESETS

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in (
        *("README.md", "BUILD.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "deploy/*.md"),
        "examples/*.py",
        *("results/*/README.md", "results/*/discussion.md"),
        *("experiments/configs/*.py", "benchmarks/*.py"),
    )
    for path in ROOT.glob(pattern)
)
SECTIONS = {name.partition(".")[0] for name in declarations() if "." in name}


def read(page: pathlib.Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def written_code(text: str) -> list[str]:
    """The lines of code of a page, each without its comment, and what stands in backquotes."""
    text = re.sub(r"\\\n\s*", " ", text)
    fenced = [*re.findall(r"(?ms)^ *```bash\n(.*?)^ *```", text)]
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    indented = [line for line in text.splitlines() if line.startswith("    ")]
    lines = [line.partition("  #")[0] for line in [*"".join(fenced).splitlines(), *indented]]
    spans = re.findall(r"`([^`]+)`", re.sub(r"(?m)^    .*$", "", text))
    return [*lines, *(" ".join(span.split()) for span in spans)]


def commands(text: str, name: str) -> list[list[str]]:
    """The words after each `name` in the code of a page, up to the end of the command."""
    return [
        words.split()
        for code in written_code(text)
        for words in re.findall(rf"(?:^|[\s(]){re.escape(name)} ([^|;&>]*)", code)
    ]


def test_the_page_of_settings_is_what_the_declarations_give():
    page = runpy.run_path(str(ROOT / "docs" / "settings.py"))["page"]()
    assert read(pathlib.Path("docs/settings.md")) == page, "run `python docs/settings.py`"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_settings_exist(page):
    text = read(page)
    names = re.findall(r"--config\.([a-z_.]+)|--set ([a-z_.]+)=", text)
    for name in filter(None, (part for pair in names for part in pair)):
        require_name(name.rstrip("."))
    for code in written_code(text) if page.suffix == ".md" else ():
        found = re.fullmatch(r"([a-z_]+)(\.[a-z_]+)(=.*)?", code)
        if found and found[1] in SECTIONS:
            require_name(found[1] + found[2])


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_configs_exist(page):
    for spec in re.findall(r"--config[= ]([A-Za-z_.:]+)", read(page)):
        if spec != "NAME" and not spec.endswith(".toml"):
            load_config(spec.rstrip(".:"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_options_of_qpr_exist(page):
    for words in commands(read(page), "qpr"):
        command = qpr.commands.get(words[0])
        if command is None:
            assert not re.fullmatch("[a-z]+", words[0]), f"qpr has no command {words[0]}"
            continue
        known = {o for p in command.params if isinstance(p, click.Option) for o in p.opts}
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("-") and option != "-":
                assert option in {*known, "--help"}, f"qpr {words[0]} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_programs_exist(page):
    for name in re.findall(r"python -m ((?:experiments|benchmarks)\.[a-z_]+)", read(page)):
        assert importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=str)
def test_links_lead_somewhere(page):
    shown = re.sub(r"(?s)<!--.*?-->", "", read(page))
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", shown):
        if "://" not in link:
            assert (ROOT / page.parent / link).exists(), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=str)
def test_toml_is_read(page):
    for text in re.findall(r"```toml\n(.*?)```", read(page), re.DOTALL):
        tables = tomllib.loads(text)
        flat = {
            f"{name}.{key}" if isinstance(value, dict) else name: v
            for name, value in tables.items()
            for key, v in (value if isinstance(value, dict) else {name: value}).items()
        }
        override(load_config("quora_sdml"), flat)


def test_the_readme_counts_the_verdicts_of_the_pages():
    counted = []
    for page in ("quora", "openqa", "noise"):
        parts = read(pathlib.Path("results", page, "README.md")).split("# Coherence: ")
        for part in parts[1:] or parts:
            cells = re.findall(r"^\| .*\| (holds|not decided|does not hold)[^|]* \|$", part, re.M)
            counted.append([cells.count(v) for v in ("holds", "not decided", "does not hold")])
    rows = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \|$", read(pathlib.Path("README.md")), re.M)
    assert [[*map(int, row)] for row in rows] == counted


def test_each_config_has_a_page():
    files = {path.stem for path in ROOT.glob("experiments/configs/[!_]*.py")}
    assert files == set(PRESETS)


def test_the_checks_find_what_is_wrong():
    text = (
        "`qpr mine a.txt\n--wrong 3`\n\n"
        "```bash\nqpr index a \\\n  --run minilm  # --not-this\n```\n"
    )
    assert commands(text, "qpr") == [
        ["index", "a", "--run", "minilm"],
        ["mine", "a.txt", "--wrong", "3"],
    ]
