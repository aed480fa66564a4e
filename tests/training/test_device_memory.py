import jax
import pytest

from qpr_jax.errors import UserError
from qpr_jax.training import device_memory
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.overrides import load_config, override
from qpr_jax.training.stages import build_plan

CONFIG = override(load_config("synthetic_sdml:smoke"), {"batch_size": 32, "devices": 1})


@pytest.fixture(scope="module")
def dataset():
    return load_dataset(CONFIG, None)


def compiled_step(dataset, **changes):
    """The plan of a training and its compiled step."""
    plan = build_plan(override(CONFIG, changes), dataset)
    loader, train = plan.stages[0].objectives[0]
    return plan, train.step.compile(plan.state, loader.batch(0, plan.mesh))


@pytest.mark.slow
def test_a_step_needs_its_state_and_more_for_more_filters(dataset):
    plan, small = compiled_step(dataset)
    _, large = compiled_step(dataset, **{"encoder.filters": 300})
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(plan.state))
    need = device_memory.needed(small)
    assert need > state
    # Their products for each token of the vocabulary, forward and backward.
    assert device_memory.needed(large) > need + 4 * 300 * 256


def test_chunks_need_less(dataset):
    whole, chunked = (
        device_memory.needed(
            compiled_step(dataset, **{"encoder.filters": 600, "batch.encode_chunk": chunk})[1]
        )
        for chunk in (0, 16)
    )
    assert chunked < whole


def test_what_does_not_fit_is_refused_before_the_first_step(dataset):
    plan, compiled = compiled_step(dataset)
    need = device_memory.needed(compiled)
    assert device_memory.require_memory(compiled, sharing=1, limit=need) == need
    for sharing, limit in ((1, need - 1), (2, 2 * need - 1)):
        with pytest.raises(UserError, match=r"a step needs .* GiB .* `batch.encode_chunk=4096`"):
            device_memory.require_memory(compiled, sharing=sharing, limit=limit)
    plan = plan._replace(memory=1)
    with pytest.raises(UserError, match=r"lower `batch_size`"):
        plan.compile()


def test_the_step_that_was_measured_is_the_one_that_runs(dataset, caplog):
    plan, compiled = compiled_step(dataset)
    loader, train = plan.stages[0].objectives[0]
    batch = loader.batch(0, plan.mesh)
    assert train.step.compile(plan.state, batch) is compiled
    with jax.log_compiles():
        _, metrics = train.step(plan.state, batch)
        assert float(metrics["loss"]) > 0
    assert not [record for record in caplog.records if "jit(step)" in record.getMessage()]


def test_memory_of_a_cpu_is_that_of_the_machine():
    assert device_memory.available(jax.devices()[0]) > 1 << 20
