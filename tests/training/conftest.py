"""Teachers' vectors of these tests are cached in a temporary folder."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Where a module's vectors of teachers are cached."""
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(home))
        yield home / "qpr_jax" / "teacher"
