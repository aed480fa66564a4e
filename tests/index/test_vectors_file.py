import fcntl

import numpy as np
import pytest

from qpr_jax.errors import UserError
from qpr_jax.index.vectors_file import encode_to_file


def encode(questions) -> np.ndarray:
    return np.array([[len(q), 1] for q in questions], np.float32).reshape(-1, 2)


def write(path) -> int:
    return encode_to_file(path, ["a", "bcd"], encode, dimension=2, encoder="x", log=len)


def test_vectors_are_written(tmp_path):
    assert write(tmp_path / "v.npy") == 2
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), [[1, 1], [3, 1]])
    assert write(tmp_path / "v.npy") == 2


def test_the_lock_outlives_its_holder(tmp_path):
    """Else one process could lock the file that is gone, and the next a new one."""
    write(tmp_path / "v.npy")
    lock = tmp_path / ".v.npy.lock"
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is writing it; wait for its end"):
            write(tmp_path / "v.npy")
    inode = lock.stat().st_ino
    write(tmp_path / "v.npy")
    assert lock.stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == [".v.npy.lock", "v.npy"]
