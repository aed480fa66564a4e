"""Light rooms stay light: they import no package that takes long."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
HEAVY = ("faiss", "jax", "jinja2", "numba", "pandas", "pyarrow", "rich", "sklearn")
# Each room after the one before, in one process, with the heavy packages that it may load.
ROOMS = {
    "errors": (),
    "files": (),
    "text": ("numba",),
    "data": ("numba",),
    "index": ("faiss", "numba"),
    "retriever": ("faiss", "numba"),
    "results": ("faiss", "numba"),
}
CODE = """
import importlib, json, sys
rooms, heavy = json.loads(sys.argv[1])
loaded = {}
for room, names in rooms.items():
    for name in names:
        importlib.import_module(name)
    loaded[room] = [name for name in heavy if name in sys.modules]
print(json.dumps(loaded))
"""


def modules_of(room: str) -> list[str]:
    paths = [ROOT / "qpr_jax" / f"{room}.py", *(ROOT / "qpr_jax" / room).rglob("*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return sorted(
        n.removesuffix(".__init__") for n, p in zip(names, paths, strict=True) if p.exists()
    )


def test_light_rooms_load_nothing_heavy():
    rooms = {room: modules_of(room) for room in ROOMS}
    assert all(rooms.values())
    arguments = [sys.executable, "-c", CODE, json.dumps([rooms, HEAVY])]
    done = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for room, names in json.loads(done.stdout).items():
        assert {*names} <= {*ROOMS[room]}, room
