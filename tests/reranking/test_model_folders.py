"""The folders of light re-rankers and calibrations: damage and other contents."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, write_manifest
from qpr_jax.reranking import calibration, light
from tests.reranking.models import light_model, pair_calibration

MODELS = {
    "light": light_model(settings={"seed": 1}),
    "calibration": pair_calibration(light=light_model()),
}
ROOMS = {"light": light, "calibration": calibration}


def save(folder, kind):
    """Save a model; return a function that reads it, and the name of its tensors."""
    room = ROOMS[kind]
    getattr(room, f"save_{kind}")(folder, MODELS[kind])
    return getattr(room, f"read_{kind}"), room.WEIGHTS


@pytest.fixture(params=MODELS)
def saved(request, tmp_path):
    """A folder of one kind, its reader and the name of its tensors."""
    return tmp_path / "m", *save(tmp_path / "m", request.param)


def test_damage_is_always_noticed(saved):
    folder, read, name = saved
    for path in (folder / MANIFEST, folder / name):
        data = path.read_bytes()
        places = np.random.default_rng(0).integers(len(data) - 1, size=40).tolist()
        for place in [0, 7, len(data) - 2, *places]:
            flipped = bytearray(data)
            flipped[place] ^= 1
            for damaged in (bytes(flipped), data[:place]):
                path.write_bytes(damaged)
                with pytest.raises(UserError):
                    read(folder)
        path.unlink()
        with pytest.raises(UserError):
            read(folder)
        path.write_bytes(data)
    read(folder)
    with pytest.raises(UserError):
        read(folder.parent / "none")


def facts_of(folder):
    facts = json.loads((folder / MANIFEST).read_text())
    del facts["files"]
    return facts


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("light", {"format": "qpr_jax reranker 0"}),
        ("light", {"features": ["length"]}),
        ("light", {"candidates": True}),
        ("light", {"candidates": -1}),
        ("light", {"candidates": 10**30}),
        ("light", {"cross_encoder": "another"}),
        ("calibration", {"reach": "far"}),
        ("calibration", {"bias": 1}),
    ],
)
def test_a_sealed_manifest_of_other_facts_is_refused(tmp_path, kind, changes):
    read, name = save(tmp_path / "m", kind)
    write_manifest(tmp_path / "m", [name], **facts_of(tmp_path / "m") | changes)
    with pytest.raises(UserError):
        read(tmp_path / "m")


def test_sealed_tensors_of_other_shapes_or_numbers_are_refused(saved):
    folder, read, name = saved
    facts, tensors = facts_of(folder), load_file(folder / name)

    def refused(changed: dict[str, np.ndarray]) -> None:
        save_file(changed, folder / name)
        write_manifest(folder, [name], **facts)
        with pytest.raises(UserError):
            read(folder)

    for key, array in tensors.items():
        refused({other: value for other, value in tensors.items() if other != key})
        others = [array[:0], array[None].copy(), np.zeros((1, 1, 1, 0)), array.astype(np.int16)]
        if array.dtype.kind == "f" and array.size:
            others.append(np.full_like(array, np.nan))
        if key in ("frequencies.documents", "frequencies.mean_length"):
            others.append(-array)
        for other in others:
            refused({**tensors, key: other})
    (folder / name).write_bytes(b"\xff" * 7 + b"\x7f")  # a header of exabytes
    write_manifest(folder, [name], **facts)
    with pytest.raises(UserError):
        read(folder)
