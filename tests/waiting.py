"""Waiting for what another thread or process does."""

import time


def wait_until(condition) -> None:
    """Wait until `condition()` holds, a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
