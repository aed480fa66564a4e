"""What `import qpr_jax` offers: names, types, what objects say that they are; and it is light."""

import json

import pytest

import qpr_jax
from qpr_jax.encoders.load import load_encoder
from tests.encoders.examples import TINY
from tests.runs import run_python, write_encoder, write_words

QUESTIONS = ["How to cook rice?", "What is rice?", "How can I learn Python?"]


def test_every_name_is_there_and_is_listed():
    assert dir(qpr_jax) == sorted([*qpr_jax.__all__, "__version__"])
    for name in qpr_jax.__all__:
        found = getattr(qpr_jax, name)
        assert name in qpr_jax.__doc__, f"the docstring of qpr_jax does not explain {name}"
        assert found.__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'Retreiver'"):
        _ = qpr_jax.Retreiver


def test_objects_say_what_they_are_and_not_all_their_numbers(tmp_path):
    run = tmp_path / "run"
    write_encoder(run)
    write_words(run)
    retriever = qpr_jax.Retriever.build(QUESTIONS, encoder=run)
    encoder = "<CnnEncoder: 6 dimensions, 14 words, windows of 3, reads 64 tokens>"
    store = "<FolderStore: 3 questions in memory, Flat>"
    assert repr(retriever) == f"<Retriever: {encoder}, {store}>"
    retriever.save(tmp_path / "saved")
    retriever.remove([0])
    saved = f"<FolderStore: 2 questions in {tmp_path / 'saved' / 'index'}, Flat>"
    assert repr(retriever.store) == saved
    for value in (retriever.encoder.vocabulary, load_encoder(TINY)):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 250
    assert "words=" not in repr(retriever.encoder.summary())


HEAVY = ("faiss", "jax", "jinja2", "numba", "pandas", "pyarrow", "rich", "sklearn")
# Each after the one before, in one process, with the heavy packages that it may load.
IMPORTS = {
    "import qpr_jax.cli.commands": (),  # as `qpr --help` does
    "from qpr_jax import UserError, read_table": (),
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
    out, _ = run_python("-c", CODE, json.dumps([[*IMPORTS], HEAVY]))
    for line, allowed in zip(out.splitlines(), IMPORTS.values(), strict=True):
        assert {*json.loads(line)} <= {*allowed}
