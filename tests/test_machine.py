import numba

from qpr_jax import machine


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
    machine._say_uncached.cache_clear()
    for _ in range(2):
        assert machine.compile_loop()(lambda x: x + 1)(1) == 2
    assert caplog.text.count("no folder can keep compiled code") == 1
    assert "NUMBA_CACHE_DIR" in caplog.text
