"""Extras of pyproject.toml."""

import json
import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.install import needed, requirements
from tests.runs import ROOT, run_python

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", ["cuda", "tpu"])
def test_accelerators_are_extras_that_the_installed_jax_has(extra):
    train, line = EXTRAS[extra]
    asked = Requirement(line)
    assert (train, asked.name) == ("qpr_jax[train]", "jax")
    assert metadata.version("jax") in asked.specifier
    assert asked.extras <= {*metadata.metadata("jax").get_all("Provides-Extra")}


def test_all_that_the_tests_install_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert needed(requirements("dev")) <= {canonicalize_name(pin.name) for pin in pins}


# Runs commands of `qpr`, each after the one before, where some packages cannot be imported.
WITHOUT = """
import json, sys
absent, commands = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(absent))
from qpr_jax.cli import main
for words in commands:
    sys.argv = ["qpr", *words.split()]
    print(json.dumps(["status", words, main.main()]), flush=True)
"""
WORKING = (
    "sample --out sample",
    "index mine sample/questions.csv",
    "search mine --query rice",
    "evaluate mine sample/queries.csv",
    "add mine sample/questions.csv",
    "remove mine sample/questions.csv",
    "compact mine",
    "info mine",
    "clusters sample/logs.jsonl --out clusters",
    "duplicates sample/questions.csv --out found --max-distance 0.5",
)
REFUSED = {
    "evaluate mine sample/pairs.csv --task classification --validation sample/pairs.csv": "sklearn",
    "train runs/a --config synthetic_sdml": "pydantic",
    "serve mine": "fastapi",
}


def test_the_core_indexes_searches_changes_and_finds_duplicates(tmp_path):
    """In a process without any package that the core does not require, as an install has it.

    A few seconds, since nothing smaller shows what a command imports late.
    """
    core = needed(requirements())
    absent = [
        module
        for module, names in metadata.packages_distributions().items()
        if not core & {*map(canonicalize_name, names)} and not module.startswith("qpr_jax")
    ]
    assert "numpy" not in absent
    assert {"jax", "flax", "scipy", "sklearn", "fastapi", "onnx", "pydantic"} <= {*absent}
    commands = json.dumps([absent, [*WORKING, *REFUSED]])
    out, err = run_python("-c", WITHOUT, folder=tmp_path, given=commands)
    printed = [json.loads(s) for s in out.splitlines() if s.startswith('["status"')]
    expected = dict.fromkeys(WORKING, 0) | dict.fromkeys(REFUSED, 1)
    assert {words: status for _, words, status in printed} == expected, err
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    for line, package in zip(errors, REFUSED.values(), strict=True):
        assert f": expected the package {package}, found none; pip install '.[" in line


def test_messages_name_extras_that_there_are():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "qpr_jax").rglob("*.py"))
    found = {*re.findall(r'"\.\[(\w+)\]"', source)}
    assert {"train", "serve"} <= found <= EXTRAS.keys()
