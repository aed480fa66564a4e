"""The cache of compiled loops."""

import importlib
import sys

import pytest

INNER = """
from qpr_jax.loops import compile_loop
NUMBER = {}

@compile_loop()
def inner(x):
    return x {} 2
"""
OUTER = """
from inner_loops import NUMBER, inner
from qpr_jax.loops import compile_loop

@compile_loop()
def outer(x):
    return inner(x) + NUMBER
"""


@pytest.mark.parametrize("changed", [(1000, "+"), (1, "-   ")])
def test_a_loop_is_compiled_again_if_an_imported_loop_or_number_changes(
    tmp_path, monkeypatch, changed
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outer_loops.py").write_text(OUTER)

    def run(number, sign):
        (tmp_path / "inner_loops.py").write_text(INNER.format(number, sign))
        for name in ("inner_loops", "outer_loops"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        outer = importlib.import_module("outer_loops").outer
        return outer(5), sum(outer.stats.cache_hits.values())

    assert run(1, "+") == (8, 0)
    assert run(1, "+") == (8, 1)
    number, sign = changed
    assert run(number, sign) == (eval(f"5 {sign} 2 + {number}"), 0)
