"""What is uploaded: a wheel, made from the sdist, that works in an empty environment."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

import qpr_jax

ROOT = pathlib.Path(__file__).parent.parent
QUESTIONS = "id,question\n1,How to cook rice?\n2,How do I cook rice?\n3,Who wrote Hamlet?\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist and the wheel, built by the setuptools that is installed here."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    for name in tracked():
        if name.startswith("qpr_jax/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, folder=out)
    return out


def tracked(*folders):
    """The files in Git, and those that it would add."""
    how = ("--cached", "--others", "--exclude-standard")
    return run("git", "ls-files", *how, *folders, folder=ROOT).splitlines()


def run(*words, folder):
    """Run a program away from the checkout, without its path; what it prints."""
    hidden = ("PYTHON", "MYPY")
    own = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_has_the_package_alone(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
        (metadata,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        facts = file.read(metadata).decode()
    assert {*names} == {*tracked("qpr_jax")}
    for line in (f"Version: {qpr_jax.__version__}", "License-Expression: Apache-2.0"):
        assert f"\n{line}\n" in facts
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        assert {"LICENSE", "README.md", "pyproject.toml"} <= {
            name.partition("/")[2] for name in file.getnames()
        }


@pytest.mark.slow
def test_the_core_works_in_an_empty_environment(built, tmp_path):
    """It installs the core's packages, from pip's cache or the package index."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    programs = tmp_path / "venv" / "bin"
    constraints = ROOT / "constraints.txt"
    install = ("install", "--quiet", "--no-compile", wheel, "-c", constraints)
    run(programs / "pip", *install, folder=tmp_path)
    assert run(programs / "qpr", "--help", folder=tmp_path).startswith("Usage: qpr ")
    (tmp_path / "t.csv").write_text(QUESTIONS)
    run(programs / "qpr", "index", "mine", "t.csv", folder=tmp_path)
    asked = ("--query", "who is the author of hamlet", "-k", "1")
    printed = run(programs / "qpr", "search", "mine", *asked, "--json", folder=tmp_path)
    assert '"id": 3' in printed
    where = run(
        programs / "python", "-c", "import qpr_jax; print(qpr_jax.__file__)", folder=tmp_path
    )
    assert pathlib.Path(where.strip()).is_relative_to(tmp_path / "venv")


@pytest.mark.slow
def test_a_users_script_is_checked_against_the_installed_types(built, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    (site / "others.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    shutil.copy(ROOT / "tests" / "user_script.py", tmp_path)
    strict = (sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull)
    installed = ("--python-executable", tmp_path / "venv" / "bin" / "python")
    printed = run(*strict, *installed, "user_script.py", folder=tmp_path)
    assert printed == "Success: no issues found in 1 source file\n"
