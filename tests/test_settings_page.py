"""docs/settings.md is what the declarations say, and the hook that writes it knows their files."""

import re

import yaml

from tests.runs import ROOT, run_python

PAGE = ROOT / "docs" / "settings.md"
WRITER = ROOT / "docs" / "settings.py"


def test_the_page_is_what_its_program_writes():
    # In a process of its own: other tests register losses, which the page would list.
    program = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['page']())"
    page, _ = run_python("-c", program, WRITER)
    assert PAGE.read_text(encoding="utf-8") == page, "run python docs/settings.py"


def test_the_hook_runs_for_the_files_that_the_page_is_made_of():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (hook,) = (h for repo in config["repos"] for h in repo["hooks"] if h["id"] == "settings")
    pattern = re.sub(r"\s", "", hook["files"])
    names = re.fullmatch(r"\(\?x\)\^\((.*)\)\$", pattern)[1].replace("\\.", ".").split("|")
    assert [name for name in names if not (ROOT / name).is_file()] == []
    modules = re.findall(r"^from (qpr_jax\.\S+) import", WRITER.read_text(), re.MULTILINE)
    read = {f"{module.replace('.', '/')}.py" for module in modules}
    assert {"docs/settings.md", "docs/settings.py", *read} <= {*names}
    assert all(re.search(hook["files"], name) for name in names)
