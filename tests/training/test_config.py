import re

import pytest
from pydantic import ValidationError

from qpr_jax.errors import UserError
from qpr_jax.training.checks import validate
from qpr_jax.training.config import TrainConfig, flatten, identity
from qpr_jax.training.overrides import override


def test_the_defaults_are_those_of_the_paper():
    settings = TrainConfig()
    validate(settings)
    flat = flatten(settings)
    assert flat["batch_size"] == 512
    assert flat["loss.smoothing"] == 0.3
    assert flat["encoder.kernel_sizes"] == (5,)
    assert flat["encoder.embedding_dim"] == flat["encoder.output_dim"] == 300
    assert (flat["text.vocabulary_size"], flat["text.hash_bins"]) == (50_000, 5_000)
    assert flat["optimizer.learning_rate"] == 1e-3
    assert (flat["index.factory"], flat["index.probes"]) == ("auto", 64)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data.source", "web"),
        ("encoder.kind", "lstm"),
        ("index.factory", "IVF2000,PQ301"),
        ("loss.names", ("sdlm",)),
        ("loss.names", ("sdml", "sdml")),
        ("loss.weights", (1.0, 2.0)),
        ("distributed.num_processes", 2),
    ],
)
def test_a_setting_that_does_not_fit_is_named(name, value):
    with pytest.raises(UserError):
        validate(override(TrainConfig(), {name: value}))


def test_assigning_a_wrong_value_or_name_is_refused():
    config = TrainConfig()
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        config.loss.smoothing = 1.1
    with pytest.raises(ValidationError, match="no_such"):
        config.loss.no_such = 1.1


def test_a_run_is_not_identified_by_what_does_not_change_its_result():
    settings = TrainConfig()
    before = identity(settings)
    settings.devices, settings.data.path = 4, "elsewhere.tsv"
    assert identity(settings) == before
    settings.seed = 1
    assert identity(settings) != before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"coordinator": "here:1", "num_processes": 2, "process_id": 1, "enabled": False},
            "enabled: False",
        ),
        (
            {"coordinator": "here", "num_processes": 2, "process_id": 1},
            "got 'here', 2 and 1, enabled: True",
        ),
        ({"coordinator": "here:1", "num_processes": 2, "process_id": 2}, "got 'here:1', 2 and 2"),
        ({"process_id": 0}, "got '', 0 and 0"),
    ],
)
def test_processes_are_named_whole_or_not_at_all(changed, message):
    settings = TrainConfig()
    changes = {
        f"distributed.{name}": value for name, value in ({"enabled": True} | changed).items()
    }
    settings = override(settings, changes)
    with pytest.raises(UserError, match=re.escape(message)):
        validate(settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_epochs": 0}, "expected pairs to train on or a teacher, got neither"),
        ({"data.source": "questions"}, "expected pairs to train on or a teacher, got neither"),
        (
            {"teacher.init_embeddings": True},
            "`teacher.init_embeddings`: expected a teacher, got none",
        ),
        ({"early_stopping.metric": "agreement"}, "expected a teacher, got none"),
        (
            {"teacher.model": "a", "teacher.vectors": "b"},
            "expected a teacher's model or its vectors, got 'a' and 'b'",
        ),
        (
            {"teacher.model": "a", "teacher.epochs": 0, "max_epochs": 0},
            "expected 1 epoch or more of imitation or of pairs, got 0 and 0",
        ),
        (
            {"teacher.model": "a", "data.source": "questions"},
            "expected 0, since a list of questions has no pairs, got 10",
        ),
        (
            {"teacher.model": "a", "data.source": "questions", "max_epochs": 0},
            "`early_stopping.metric`: expected agreement",
        ),
        (
            {"encoder.kind": "bert"},
            "`encoder.pretrained`: expected a folder to start from for bert, got none",
        ),
    ],
    ids=str,
)
def test_teachers_pairs_and_encoders_must_fit_each_other(changed, message):
    settings = TrainConfig()
    settings = override(settings, changed)
    with pytest.raises(UserError, match=re.escape(message)):
        validate(settings)


def test_several_processes_use_all_their_devices():
    settings = TrainConfig()
    settings.distributed.enabled = True
    validate(settings)
    settings.devices = 2
    with pytest.raises(UserError, match=r"`devices`: expected 0 with several processes, .* got 2"):
        validate(settings)
