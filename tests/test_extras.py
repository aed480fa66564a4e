"""Extras of pyproject.toml."""

import pathlib
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize(("extra", "package"), [("cuda", "jax-cuda12-plugin"), ("tpu", "libtpu")])
def test_accelerators_are_extras_that_the_installed_jax_has(extra, package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = project["optional-dependencies"][extra]
    asked = Requirement(line)
    (name,) = asked.extras
    assert asked.name == "jax"
    assert metadata.version("jax") in asked.specifier
    assert name in metadata.metadata("jax").get_all("Provides-Extra")
    required = [Requirement(requirement) for requirement in metadata.requires("jax")]
    added = {r.name: r for r in required if r.marker and r.marker.evaluate({"extra": name})}
    assert package in added
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    (jaxlib,) = (Requirement(line) for line in constraints if line.startswith("jaxlib=="))
    assert added["jaxlib"].specifier.contains(next(iter(jaxlib.specifier)).version)
