"""What is said of a training before it, and what measuring must not touch. No time is asserted."""

import pathlib
import re

import jax
import numpy as np
import pytest

from qpr_jax.costs import estimate
from qpr_jax.errors import UserError
from qpr_jax.training.costs import dry_run_of, require_room
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.stages import build_plan


@pytest.fixture(scope="module")
def planned():
    config = load_config("synthetic_sdml:smoke")
    dataset = load_dataset(config, None, None)
    plan = build_plan(config, dataset)
    plan.compile()
    return config, dataset, plan


def test_measuring_leaves_the_state_as_it_is(planned, tmp_path, caplog):
    config, dataset, plan = planned
    caplog.set_level("INFO")
    before = jax.tree.map(np.asarray, plan.state)
    require_room(config, dataset, tmp_path, plan, plan.stages[-1].ends - 2)
    jax.tree.map(np.testing.assert_array_equal, plan.state, before)
    assert "; 2 steps, " in caplog.text  # those that are left of a resumed training
    assert not [*tmp_path.iterdir()]


def test_what_does_not_fit_is_refused(planned, tmp_path, monkeypatch):
    config, dataset, plan = planned
    monkeypatch.setattr(estimate, "free_disk", lambda path: 0)
    with pytest.raises(UserError, match="train in a `workdir` on another disk"):
        require_room(config, dataset, tmp_path, plan, 0)
    monkeypatch.setattr(estimate, "available_memory", lambda: 0)
    remedy = "set `index.factory=IVF2000,SQ8` and `index.assignments=1`"
    with pytest.raises(UserError, match=re.escape(remedy)):
        require_room(config, dataset, tmp_path, plan, 0)
    override(config, {"index.factory": "IVF2000,SQ8", "index.assignments": 1})  # are settings


def test_a_dry_run_reads_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = override(load_config("synthetic_sdml:smoke"), {"max_steps": 7, "rerank.kind": "light"})
    found = dry_run_of(config)
    assert (found.count, found.unit) == (7, "steps")
    assert min(found.seconds, found.memory, found.disk) > 0
    assert not [*pathlib.Path().iterdir()]


def test_only_an_encoder_is_estimated():
    config = load_config("quora_cross_encoder")
    with pytest.raises(UserError, match="start it without `dry_run`"):
        dry_run_of(config)
