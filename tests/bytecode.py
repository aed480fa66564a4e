"""Where Python keeps the bytecode of tests, and of the programs that they start."""

import pathlib
import sys


def keep() -> str:
    """Keep bytecode in `.cache` if the environment forbids it beside the sources.

    Without it every worker rewrites all tests, and every program that a test starts compiles the
    sources of JAX. Returns `PYTHONPYCACHEPREFIX` of these programs.
    """
    if sys.dont_write_bytecode:
        sys.dont_write_bytecode = False
        sys.pycache_prefix = str(pathlib.Path(__file__).parent.parent / ".cache" / "bytecode")
    return sys.pycache_prefix or ""
