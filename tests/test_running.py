import runpy

import numba

from qpr_jax import running


def test_memory_is_what_the_machine_and_the_container_have_left(monkeypatch):
    files = {"/proc/meminfo": {"MemAvailable": 8}}  # KiB
    monkeypatch.setattr(running, "_read_numbers", lambda path: files.get(str(path), {}))
    assert running.available_memory() == 8192
    group = "/sys/fs/cgroup"
    for used, left in ((1000, 4000), (6000, 0)):
        files[f"{group}/memory.max"] = {"": 5000}
        files[f"{group}/memory.stat"] = {"anon": used, "file": 3000}
        assert running.available_memory() == left


def test_loops_without_a_folder_for_compiled_code_work_and_say_once_which_to_give(
    monkeypatch, caplog
):
    njit = numba.njit
    njit(lambda x: x)(1)  # so that numba has imported the loops of its own

    def without_folders(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", without_folders)
    running._say_uncached.cache_clear()
    for _ in range(2):
        assert running.compile_loop()(lambda x: x + 1)(1) == 2
    assert caplog.text.count("no folder can keep compiled code") == 1
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_compiled_code_that_is_cut_short_is_compiled_again(tmp_path, monkeypatch, caplog):
    """As after a power loss: an index or code that is empty, or lacks its end."""
    source = tmp_path / "loops.py"
    source.write_text("def add(x):\n    return x + 1\n")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))

    def use():
        scope = runpy.run_path(str(source))
        running._remove_damaged.cache_clear()
        loop = running.compile_loop()(scope["add"])
        assert loop(1) == 2
        return [*(tmp_path / "cache").rglob("loops.*.nb[ic]")]

    for path in use():
        for data in (b"", path.read_bytes()[:-20]):
            path.write_bytes(data)
            caplog.clear()
            use()
            assert caplog.messages[0].startswith(f"{path}: removed damaged compiled code")
    caplog.clear()
    assert len(use()) == 2
    assert "damaged" not in caplog.text
