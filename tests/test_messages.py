"""Every error names settings and options by markup, so that each program spells them its own way.

The source of all errors is parsed: a message that no test raises is checked too.
"""

import ast
import pathlib
import re

import pytest

from qpr_jax.cli.commands import qpr
from qpr_jax.cli.spelling import setting_of
from qpr_jax.errors import _MARKUP

ROOT = pathlib.Path(__file__).parent.parent
PARAMETERS = {
    parameter.name for command in qpr.commands.values() for parameter in command.params
} | {"config", "workdir"}
MESSAGES = {"UserError", "spell", "log", "debug", "info", "warning", "error", "exception"}
PIP = ast.unparse(ast.parse('f"pip install {shlex.quote(install)}"'))  # in `extras.needs`
FLAG = re.compile(r"(?<![\w-])--[a-z]")


@pytest.fixture(scope="module")
def sources():
    """The trees of all files; it takes seconds, so no other test of a worker waits for it."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for room in ("qpr_jax", "experiments", "benchmarks")
        for path in (ROOT / room).rglob("*.py")
    }


def called(node):
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def texts(node):
    """All string literals below a node."""
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is str]


def own_flags(tree):
    """Flags that a study or a benchmark defines for itself, by their Python names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(value, ast.Call) and called(value) == "Flag":
                    yield key.value
        if isinstance(node, ast.Call) and called(node) == "add_argument":
            yield node.args[0].value.lstrip("-").replace("-", "_")


def nodes_and_functions(tree, function=None):
    yield tree, function
    inside = tree if isinstance(tree, ast.FunctionDef) else function
    for child in ast.iter_child_nodes(tree):
        yield from nodes_and_functions(child, inside)


def literals(node, function, tree):
    """The literal texts of a remedy; None if it is no literal, nor passed on."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if ast.unparse(node) == PIP:
        return []  # of an extra, which `test_extras` checks
    if isinstance(node, ast.JoinedStr):
        parts = [part for part in node.values if isinstance(part, ast.FormattedValue)]
        if all(isinstance(p.value, ast.Call) and called(p.value) == "ref" for p in parts):
            return [part.value for part in node.values if isinstance(part, ast.Constant)]
    if isinstance(node, ast.Attribute) and node.attr == "remedy":
        return []  # of another error
    if isinstance(node, ast.Name):
        if function and node.id in {
            a.arg for a in (*function.args.args, *function.args.kwonlyargs)
        }:
            return []  # each caller's `remedy=` is checked, and the default, a constant, is below
        return [
            n.value.value
            for body in filter(None, (function, tree))
            for n in body.body
            if isinstance(n, ast.Assign)
            and getattr(n.targets[0], "id", "") == node.id
            and isinstance(n.value, ast.Constant)
        ] or None
    return None


def name_errors(tree, passing_on=()):
    """What is wrong with the remedies, settings and references of a file.

    `passing_on` are the names of functions that pass a remedy on to an error.
    """
    own = {*own_flags(tree), "rebuild"}  # the last is a flag of every study

    def unknown(names):
        return [n for n in names if not setting_of(n) and n not in PARAMETERS and n not in own]

    for node, function in nodes_and_functions(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            for default in [d for a, d in arguments if a.arg == "remedy" and d]:
                if literals(default, None, tree) is None:
                    yield node.lineno, "the default of `remedy` is no literal"
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        markup = []
        if "remedy" in given and called(node) in ("UserError", *passing_on):
            found = literals(given["remedy"], function, tree)
            if found is None:
                yield node.lineno, "a remedy is no literal"
            markup += found or []
        if called(node) == "spell":
            markup += texts(node.args[0])
        names = [match[1] for text in markup for match in _MARKUP.finditer(text)]
        if called(node) == "UserError" and isinstance(given.get("setting"), ast.Constant):
            names.append(given["setting"].value)
        if called(node) == "ref":
            names += texts(node.args[0])
        for name in unknown(names):
            yield node.lineno, f"{name}: no program has it"


def flag_errors(tree):
    """Errors and log lines that name a flag of a program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in MESSAGES:
            if getattr(getattr(node.func, "value", None), "id", "") == "parser":
                continue  # argparse's, of a benchmark with these flags
            for text in texts(node):
                if FLAG.search(text) and "pip install" not in text:
                    yield node.lineno, text


def test_every_remedy_is_a_literal_and_names_what_a_program_has(sources):
    passing_on = {
        node.name
        for tree in sources.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and "remedy" in {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
    }
    found = {
        (path, *error) for path, tree in sources.items() for error in name_errors(tree, passing_on)
    }
    assert found == set()


def test_no_message_of_the_library_names_a_flag(sources):
    allowed = ("qpr_jax/cli/", "experiments/main.py")
    library = {path: tree for path, tree in sources.items() if not path.startswith(allowed)}
    assert {(p, *error) for p, tree in library.items() for error in flag_errors(tree)} == set()
    docs = {
        ast.get_docstring(n, clean=False)
        for t in library.values()
        for n in ast.walk(t)
        if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)
    }
    assert [
        (path, text)
        for path, tree in library.items()
        for text in texts(tree)
        if "--config." in text and text not in docs
    ] == []


@pytest.mark.parametrize(
    "wrong",
    [
        'raise UserError("a", remedy=f"lower {x}")',
        'raise UserError("a", remedy=text())',
        'raise UserError("a", remedy="lower {bach_size}")',
        'raise UserError("a", remedy=f"lower {ref(\'bach_size\', 3)}")',
        'raise UserError("a", setting="bach_size")',
        'log.info(spell("see {bach_size}"))',
    ],
)
def test_a_wrong_message_is_found(wrong):
    assert [*name_errors(ast.parse(wrong))]


def test_a_flag_in_a_message_is_found():
    assert [*flag_errors(ast.parse('raise UserError(f"`--sizes`: got {x}")'))]
    assert [*flag_errors(ast.parse('log.info("see --config.seed")'))]
