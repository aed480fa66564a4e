import os
import resource
import types

import pytest

from qpr_jax import machine


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert machine.cpu_count() == 3


def test_cores_where_the_system_has_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.cpu_count() == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cpu_count() == 1


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_bytes_on_every_system(monkeypatch, system, unit):
    usage = types.SimpleNamespace(ru_maxrss=3000)
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(machine.sys, "platform", system)
    assert machine.peak_memory() == 3000 * unit
