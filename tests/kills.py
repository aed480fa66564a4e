"""A process that is killed at a rename, by which files and folders appear."""

import contextlib
import os

import pytest


class Killed(BaseException):
    """Stands for a kill: nothing but `finally` runs after it."""


@contextlib.contextmanager
def killed_at(rename: int, suffix: str = ""):
    """End the block at this rename, from 0 on, to a name with the suffix; yields their targets."""
    replace, targets = os.replace, []

    def until_killed(source, target):
        if str(target).endswith(suffix):
            targets.append(target)
            if len(targets) > rename:
                raise Killed
        replace(source, target)

    with contextlib.suppress(Killed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", until_killed)
        yield targets
