"""What users import first is light: it loads no package that takes long."""

import json
import pathlib
import subprocess
import sys

TINY = pathlib.Path(__file__).parent / "encoders" / "tiny_bert"
HEAVY = ("faiss", "jax", "jinja2", "numba", "pandas", "pyarrow", "rich", "sklearn")
# Each after the one before, in one process, with the heavy packages that it may load.
IMPORTS = {
    "import qpr_jax.cli.commands": (),  # as `qpr --help` does
    "from qpr_jax import UserError, read_questions": (),
    "from qpr_jax import Results, Retriever, find_duplicates": ("faiss", "numba"),
    f"import qpr_jax; qpr_jax.read_encoder({str(TINY)!r})": ("faiss", "numba"),
}
CODE = """
import json, sys
imports, heavy = json.loads(sys.argv[1])
for line in imports:
    exec(line)
    print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_light_imports_load_nothing_heavy():
    arguments = [sys.executable, "-c", CODE, json.dumps([[*IMPORTS], HEAVY])]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True)
    for line, allowed in zip(done.stdout.splitlines(), IMPORTS.values(), strict=True):
        assert {*json.loads(line)} <= {*allowed}
