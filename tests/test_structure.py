"""The limits that CONTRIBUTING.md states: sizes, names, and files that a call crosses."""

import ast
import collections
import pathlib
import re
import sys

import jax

import qpr_jax
from qpr_jax import Retriever, TrainConfig, find_duplicates, load_config
from qpr_jax.training.config import flatten
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.train import plan
from tests.runs import ROOT

PACKAGE = pathlib.Path(qpr_jax.__file__).parent
TEXTS = ["how do i reset my password", "i forgot my password", "cook rice", "how to cook rice"]


def sources(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_files_and_functions_are_short():
    long = []
    for path in sources("qpr_jax", "experiments", "benchmarks", "examples", "tests"):
        text = path.read_text()
        name = path.relative_to(ROOT).as_posix()
        if (lines := len(text.splitlines())) > 350:
            long.append(f"{name}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= node.body[0].end_lineno - node.body[0].lineno + 1
                if lines > 60:
                    long.append(f"{name}: {node.name} has {lines} lines")
    assert long == []


def test_file_names_are_unique():
    counts = collections.Counter(path.name for path in sources("qpr_jax"))
    assert [name for name, count in counts.items() if count > 1] == ["__init__.py"]


def test_the_package_has_few_files_and_settings():
    assert len(sources("qpr_jax")) <= 120
    assert len(flatten(TrainConfig())) <= 60


def files_crossed(call):
    """The files of the package whose functions a call enters."""
    files = set()

    def note(frame, event, _):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(path.relative_to(PACKAGE).as_posix())

    call()  # what is read or compiled once is there
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def test_a_search_crosses_few_files():
    retriever = Retriever.build(TEXTS)
    assert len(files_crossed(lambda: retriever.search("reset my password"))) <= 12


def test_duplicates_cross_few_files():
    assert len(files_crossed(lambda: find_duplicates(TEXTS))) <= 17


def test_a_step_crosses_few_files(tmp_path):
    config = load_config("synthetic_sdml:smoke", {"data.source": "synthetic"})
    dataset = load_dataset(config, None)
    phases, state = plan(config, dataset)
    phase, states = phases[0], [state]

    def take():
        batch, _ = phase.load(0)
        states.append(phase.step(states.pop(), batch)[0])
        jax.block_until_ready(states)

    assert len(files_crossed(take)) <= 10


def test_the_guide_names_files_that_exist():
    guide = (ROOT / "BUILD.md").read_text()
    first = re.findall(r"^\d\. `(qpr_jax/[\w/]+\.py)`", guide, re.MULTILINE)
    assert len(first) == 5
    assert all((ROOT / path).is_file() for path in first)
