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
    """Files that Git tracks, and new files that it does not ignore."""
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
def test_the_wheel_works_in_an_empty_environment_and_has_types_for_a_users_script(built, tmp_path):
    """It installs the core's packages, from pip's cache or the package index."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    programs = tmp_path / "venv" / "bin"
    install = ("install", "--quiet", "--no-compile", wheel, "-c", ROOT / "constraints.txt")
    run(programs / "pip", *install, folder=tmp_path)
    run(programs / "qpr", "sample", "--out", "sample", folder=tmp_path)
    run(programs / "qpr", "index", "mine", "sample/questions.csv", folder=tmp_path)
    where = ("-c", "import qpr_jax; print(qpr_jax.__file__)")
    found = run(programs / "python", *where, folder=tmp_path)
    assert pathlib.Path(found.strip()).is_relative_to(tmp_path / "venv")
    shutil.copy(ROOT / "tests" / "user_script.py", tmp_path)
    strict = (sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull)
    installed = ("--python-executable", programs / "python")
    printed = run(*strict, *installed, "user_script.py", folder=tmp_path)
    assert printed == "Success: no issues found in 1 source file\n"
