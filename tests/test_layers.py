"""Imports point to earlier rooms of the package only, and light rooms stay light."""

import ast
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Each may import from its own line and from those above. Root modules that are not named here come
# first; "" is `qpr_jax` itself, the names that users import.
ROOMS = (
    ("text",),
    ("data",),
    ("distant",),
    ("losses", "models"),
    ("encoders",),
    ("index",),
    ("costs",),
    ("reranking",),
    ("evaluation",),
    ("failures",),
    ("results", "searcher", "retriever", "milvus_retriever", ""),
    ("duplicates",),
    ("upgrade", "extend", "facts"),
    ("publishing",),
    ("integrations",),
    ("training",),
    ("serving",),
    ("cli",),
)

LIGHT = ("errors", "files", "text", "data", "retriever")
HEAVY = ("faiss", "jax", "numba", "rich")
ALLOWED = {"retriever": {"faiss", "numba", "rich"}}


def rank(module: str) -> int:
    """Where a module stands: the line of its room; experiments last."""
    package, _, rest = module.partition(".")
    if package == "experiments":
        return len(ROOMS)
    room = rest.partition(".")[0]
    return next((i for i, names in enumerate(ROOMS) if room in names), -1)


def is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, of function bodies too, but not those under `if TYPE_CHECKING`."""
    yield tree
    children: Iterator[ast.AST] = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.If) and is_type_checking(tree.test):
        children = iter(tree.orelse)
    for child in children:
        yield from nodes(child)


def imported(source: str, module: str, modules: Mapping[str, str]) -> set[str]:
    """Modules among `modules` that `module` imports, at the top or in functions."""
    found = set()
    is_package = any(name.startswith(f"{module}.") for name in modules)
    for node in nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = module.split(".")[: len(module.split(".")) + is_package - node.level]
            base = ".".join([*(parent if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.add(name if name in modules else base)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            if called in ("import_module", "__import__"):
                found.add(str(node.args[0].value))
    return {name for name in found if name in modules}


def violations(modules: Mapping[str, str]) -> set[tuple[str, str]]:
    """(module, imported) of all imports that point to a later room; modules: name -> source."""
    return {
        (module, name)
        for module, source in modules.items()
        for name in imported(source, module, modules)
        if rank(name) > rank(module)
    }


def sources() -> dict[str, str]:
    modules = {}
    for package in ("qpr_jax", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = path.read_text(encoding="utf-8")
    return modules


def test_imports_point_to_earlier_rooms():
    modules = sources()
    assert len(modules) > 100
    assert violations(modules) == set()


def test_light_rooms_load_nothing_heavy():
    """In one process, each room after the one before."""
    code = """
import importlib, json, sys
rooms, heavy = json.loads(sys.argv[1])
loaded = {}
for room, names in rooms.items():
    for name in names:
        importlib.import_module(name)
    loaded[room] = [name for name in heavy if name in sys.modules]
print(json.dumps(loaded))
"""
    modules = sorted(sources())
    rooms = {
        room: [name for name in modules if f"{name}.".startswith(f"qpr_jax.{room}.")]
        for room in LIGHT
    }
    assert all(rooms.values())
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([rooms, HEAVY])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for room, names in json.loads(done.stdout).items():
        assert set(names) <= ALLOWED.get(room, set()), room


@pytest.mark.parametrize(
    ("importer", "statement", "target"),
    [
        ("qpr_jax.text.words", "import qpr_jax.index.base", "qpr_jax.index.base"),
        ("qpr_jax.text.words", "from qpr_jax.index.base import Hit", "qpr_jax.index.base"),
        ("qpr_jax.text.words", "from qpr_jax.index import base", "qpr_jax.index.base"),
        ("qpr_jax.text.words", "from qpr_jax.index import Hit", "qpr_jax.index"),
        ("qpr_jax.text.words", "from ..index import base", "qpr_jax.index.base"),
        ("qpr_jax.text", "from ..index.base import Hit", "qpr_jax.index.base"),
        ("qpr_jax.text.words", "from .. import retriever", "qpr_jax.retriever"),
        ("qpr_jax.text.words", "def f():\n  import qpr_jax.index.base", "qpr_jax.index.base"),
        (
            "qpr_jax.text.words",
            "import importlib\nimportlib.import_module('qpr_jax.index.base')",
            "qpr_jax.index.base",
        ),
        (
            "qpr_jax.text.words",
            "if TYPE_CHECKING:\n  pass\nelse:\n  import qpr_jax.index.base",
            "qpr_jax.index.base",
        ),
        ("qpr_jax.files", "import qpr_jax.text.words", "qpr_jax.text.words"),
        ("qpr_jax.index.base", "from qpr_jax import Retriever", "qpr_jax"),
        ("qpr_jax.training.main", "import experiments.main", "experiments.main"),
    ],
)
def test_the_checker_finds_a_violation(importer, statement, target):
    assert violations(MADE_UP | {importer: statement}) == {(importer, target)}


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("qpr_jax.index.base", "import qpr_jax.text.words, qpr_jax.files, jax"),
        ("qpr_jax.text", "from .words import tokenize"),
        ("qpr_jax.text.words", "if TYPE_CHECKING:\n  import qpr_jax.index.base"),
        ("qpr_jax.text.words", "if typing.TYPE_CHECKING:\n  from qpr_jax import retriever"),
        ("qpr_jax.models.cnn", "import qpr_jax.losses"),
        ("qpr_jax.losses", "import qpr_jax.models.cnn"),
        ("qpr_jax.retriever", "from qpr_jax import files"),
        ("qpr_jax.training.main", "from qpr_jax import Retriever"),
        ("experiments.main", "from qpr_jax.training import main"),
    ],
)
def test_the_checker_allows_earlier_rooms(importer, statement):
    assert violations(MADE_UP | {importer: statement}) == set()


MADE_UP = dict.fromkeys(
    (
        *("qpr_jax", "qpr_jax.files", "qpr_jax.retriever", "qpr_jax.text", "qpr_jax.text.words"),
        *("qpr_jax.losses", "qpr_jax.models", "qpr_jax.models.cnn", "qpr_jax.index"),
        *("qpr_jax.index.base", "qpr_jax.training", "qpr_jax.training.main"),
        *("experiments", "experiments.main"),
    ),
    "",
)
