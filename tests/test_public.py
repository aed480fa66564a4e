"""What `import qpr_jax` offers: names, what objects say that they are, and types."""

import inspect
import os
import pathlib
import pydoc
import shutil
import subprocess
import sys
import tomllib
import venv

import pytest

import qpr_jax
from qpr_jax.encoders.load import read_encoder
from tests.runs import write_encoder, write_reranker

ROOT = pathlib.Path(__file__).parent.parent
QUESTIONS = ["How to cook rice?", "What is rice?", "How can I learn Python?"]


@pytest.fixture
def run(tmp_path):
    write_encoder(tmp_path / "run")
    return tmp_path / "run"


def test_every_name_is_there_and_is_listed():
    assert dir(qpr_jax) == sorted([*qpr_jax.__all__, "__version__"])
    for name in qpr_jax.__all__:
        found = getattr(qpr_jax, name)
        assert name in qpr_jax.__doc__, f"the docstring of qpr_jax does not explain {name}"
        assert found.__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'Retreiver'"):
        _ = qpr_jax.Retreiver


def test_help_explains_every_method():
    for kind in (qpr_jax.Retriever, qpr_jax.Results, qpr_jax.Hits):
        text = pydoc.plain(pydoc.render_doc(kind))
        for name, member in vars(kind).items():
            if not name.startswith("_"):
                function = inspect.unwrap(getattr(member, "__func__", member))
                assert inspect.getdoc(function), f"{kind.__name__}.{name}"
                assert name in text


def test_objects_say_what_they_are_and_not_all_their_numbers(run, tmp_path):
    retriever = qpr_jax.Retriever.build(QUESTIONS, run=run)
    encoder = "<CnnEncoder: 6 dimensions, 14 words, windows of 3, reads 64 tokens>"
    store = "<FolderStore: 3 questions in memory, Flat>"
    assert repr(retriever) == f"<Retriever: {encoder}, {store}, <Stages: none>>"
    retriever.save(tmp_path / "saved")
    retriever.remove([0])
    saved = f"<FolderStore: 2 questions in {tmp_path / 'saved' / 'index'}, Flat>"
    model = write_reranker(run)
    bert = read_encoder(ROOT / "tests" / "encoders" / "tiny_bert")
    hit = qpr_jax.Hit(7, "How to cook rice?", 0.25, 0.5, {"url": "u"})
    fields = "id=7, question='How to cook rice?', distance=0.25, score=0.5, payload={'url': 'u'}"
    recipe = "Recipe(factory='auto', metric='l2', probes=64, vectors='float32', clean=True)"
    for value, text in (
        (retriever.store, saved),
        (model, "<LightModel: light, reorders 3 hits>"),
        (qpr_jax.Retriever.build(QUESTIONS, run=run).stages, f"<Stages: {model!r}>"),
        (retriever.encoder.vocabulary, "Vocabulary(bins=50, "),
        (bert, "<TransformerEncoder: "),
        (hit, f"Hit({fields})"),
        (qpr_jax.Recipe(), recipe),
        (qpr_jax.Explanation(0.5), "Explanation(distance=0.5, "),
    ):
        assert repr(value).startswith(text)
        assert "\n" not in repr(value)
        assert len(repr(value)) < 250
    assert "words=" not in repr(retriever.encoder.summary())


def shipped_files():
    """The files of the package that an installation has, by pyproject.toml."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    yield from (ROOT / "qpr_jax").rglob("*.py")
    for package, patterns in setuptools["package-data"].items():
        for pattern in patterns:
            found = [*ROOT.joinpath(*package.split(".")).glob(pattern)]
            assert found, f"{package}: no file {pattern}"
            yield from filter(pathlib.Path.is_file, found)


@pytest.mark.slow
def test_a_users_script_is_checked_against_the_installed_types(tmp_path):
    environment = tmp_path / "venv"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    for path in shipped_files():
        (site / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, site / path.relative_to(ROOT))
    others = [p for p in sys.path if p.endswith("-packages")]
    (site / "others.pth").write_text("\n".join(others))
    shutil.copy(ROOT / "tests" / "user_script.py", tmp_path)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull),
            *("--python-executable", environment / "bin" / "python", "user_script.py"),
        ],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "Success: no issues found in 1 source file\n", done.stdout + done.stderr
