"""docs/upgrade.md names the formats that the code writes and reads."""

import importlib
import pathlib
import re

import pytest

from qpr_jax.encoders import cnn_format
from qpr_jax.encoders.load import FORMATS
from qpr_jax.errors import UserError
from qpr_jax.files import read_manifest as read_any
from qpr_jax.files import write_manifest
from qpr_jax.index import folder
from qpr_jax.training import checkpoints, workdir

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
ROWS = [re.split(r" ?\| ?", row) for row in re.findall(r"^\| (.*) \|$", PAGE, re.MULTILINE)[1:]]
WRITTEN = {"encoders.cnn_format", "encoders.transformer_encoder", "index.folder"}


def formats(column):
    return {name for row in ROWS for name in re.findall(r"`(qpr_jax [^`]+ \d+)`", row[column])}


def test_each_format_of_the_code_is_in_its_column():
    written = {}
    for path in sorted((ROOT / "qpr_jax").rglob("*.py")):
        if re.search(r"^FORMAT\b.* = \"qpr_jax ", path.read_text(encoding="utf-8"), re.MULTILINE):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            written[name] = importlib.import_module(name).FORMAT
    assert {f"qpr_jax.{name}" for name in WRITTEN} <= written.keys()
    assert formats(1) == {*written.values()}
    assert formats(2) == {name for name in FORMATS if name.startswith("qpr_jax ")} - formats(1)
    assert formats(2) == {cnn_format.NPZ_FORMAT}
    assert formats(3) == {*folder.OLD_FORMATS, checkpoints._OLD_FORMAT}
    (run,) = (row for row in ROWS if row[0].startswith("run,"))
    assert run[1] == f"`{workdir.FORMAT}`"


@pytest.mark.parametrize("format", [*sorted(formats(3)), "qpr_jax index 7", None])
def test_another_format_is_refused_in_a_line_with_the_one_that_is_read(tmp_path, format):
    write_manifest(tmp_path, [], format=format)
    for read, expected in ((folder.read_manifest, folder.FORMAT), (read_checkpoint, "2'")):
        with pytest.raises(UserError) as error:
            read(tmp_path)
        assert expected in str(error.value)
        assert repr(format) in str(error.value)
        assert "; " in str(error.value)


def read_checkpoint(path):
    return read_any(path, format=checkpoints.FORMAT)
