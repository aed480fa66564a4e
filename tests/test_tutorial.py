"""examples/tutorial.ipynb: it runs, and prints what it holds."""

import os

import nbformat
import pytest

from tests.runs import ROOT
from tests.xla import QUICK_XLA

NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"
VARIES = "varies"  # tag of a cell whose output depends on the machine


def printed(cell):
    return "".join(output.get("text", str(output)) for output in cell.outputs)


@pytest.mark.slow
def test_it_prints_what_it_holds(tmp_path, monkeypatch):
    from nbclient import NotebookClient

    # The kernel inherits them. What it writes for itself stays in the folder of the test.
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", QUICK_XLA)
    expected = nbformat.read(NOTEBOOK, as_version=4).cells
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    for cell, kept in zip(notebook.cells, expected, strict=True):
        if cell.cell_type == "code" and VARIES not in cell.metadata.get("tags", ()):
            assert printed(cell) == printed(kept), cell.source
    assert (tmp_path / "tutorial_files" / "run" / "report.json").is_file()
    assert os.listdir(tmp_path / "tutorial_files" / "index")
