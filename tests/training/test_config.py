import re

import pytest

from qpr_jax.errors import UserError
from qpr_jax.training.checks import unused_settings, validate
from qpr_jax.training.config import default_settings, flatten, identity


def test_the_defaults_are_those_of_the_paper():
    settings = default_settings()
    validate(settings)
    flat = flatten(settings)
    assert flat["batch_size"] == 512
    assert flat["smoothing"] == 0.3
    assert flat["windows"] == (5,)
    assert flat["embedding_dim"] == flat["output_dim"] == 300
    assert (flat["vocabulary_size"], flat["hash_bins"]) == (50_000, 5_000)
    assert flat["learning_rate"] == 1e-3
    assert (flat["index.factory"], flat["index.probes"]) == ("IVF2000,Flat", 10)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 0, "`batch_size`: expected at least 1, got 0; set `--config.batch_size`"),
        ("smoothing", 1.1, "`smoothing`: expected from 0 to 1, got 1.1"),
        ("learning_rate", 0.0, "`learning_rate`: expected above 0 and finite, got 0.0"),
        ("learning_rate", float("nan"), "`learning_rate`: expected above 0 and finite, got nan"),
        ("windows", (), "`windows`: expected one or more positive numbers"),
        ("windows", (3, 0), "`windows`: expected one or more positive numbers"),
        (
            "data.source",
            "web",
            "`data.source`: expected quora or qa_logs or questions or synthetic",
        ),
        ("early_stopping.metric", "auc", "expected roc_auc or mrr or agreement, got 'auc'"),
        ("compute_dtype", "float16", "expected float32 or bfloat16, got 'float16'"),
        (
            "index.factory",
            "IVF2000,PQ7",
            "`factory`: PQ7 does not divide the 300 dimensions; PQ6 does",
        ),
        ("early_stopping.min_delta", float("inf"), "expected at least 0 and finite, got inf"),
        ("loss", "sdlm", "or several as `ranking+online_contrastive`, got 'sdlm'; set"),
        ("loss", "sdml+sdml", "got 'sdml+sdml'"),
        ("loss", "sdml+", "got 'sdml+'"),
        ("loss_weights", (1.0, 2.0), "expected a number above 0 for each of 'sdml', or none"),
        ("loss_weights", (0.0,), "expected a number above 0 for each of 'sdml', or none"),
        ("loss_weights", ("a",), "expected a number above 0 for each of 'sdml', or none"),
        ("pair_distance", "euc", "`pair_distance`: expected cosine or euclidean, got 'euc'"),
        ("similarity", "cos", "`similarity`: expected cosine or dot, got 'cos'"),
        ("similarity_scale", 0.0, "`similarity_scale`: expected above 0 and finite, got 0.0"),
        ("distance", "l2", "`distance`: expected ssd or euc, got 'l2'"),
        ("negatives", "hardest", "`negatives`: expected random or hard or hard_anchor"),
        ("prior", "flat", "`prior`: expected uniform or distance, got 'flat'"),
        ("sampling", "rows", "`sampling`: expected pairs or clusters, got 'rows'"),
        ("learning_rate_decay", "cosine", "expected none or linear, got 'cosine'"),
        ("margin", 0.0, "`margin`: expected above 0 and finite, got 0.0"),
        ("temperature", float("inf"), "`temperature`: expected above 0 and finite, got inf"),
        ("word_dropout", 1.0, "`word_dropout`: expected at least 0 and below 1, got 1.0"),
        ("hard_negatives", -1, "`hard_negatives`: expected at least 0, got -1"),
        ("fewest_uses", 0, "`fewest_uses`: expected at least 1, got 0"),
        ("seed", 2**70, "`seed`: expected below 2**32"),
        ("learning_rate_scaling", "cube", "expected none or sqrt or linear, got 'cube'"),
        ("encode_chunk", -1, "`encode_chunk`: expected at least 0, got -1"),
        ("distributed.heartbeat", 0, "`distributed.heartbeat`: expected at least 1, got 0"),
        ("distributed.processes", 2, "or none of the three, got False, '', 2 and -1"),
        ("distributed.coordinator", "localhost", "got False, 'localhost', 0 and -1"),
        ("data.split_seed", -1, "`data.split_seed`: expected at least 0, got -1"),
    ],
)
def test_a_setting_that_cannot_be_is_named(name, value, message):
    settings = default_settings()
    settings.update_from_flattened_dict({name: value})
    with pytest.raises(UserError, match=re.escape(message)):
        validate(settings)


def test_a_run_is_not_identified_by_what_does_not_change_its_result():
    settings = default_settings()
    before = identity(settings)
    settings.overwrite, settings.devices, settings.data.path = True, 4, "elsewhere.tsv"
    assert identity(settings) == before
    settings.data.split_seed = 1
    assert identity(settings) != before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"coordinator": "here:1", "processes": 2, "process": 1, "enabled": False}, "got False"),
        ({"coordinator": "here", "processes": 2, "process": 1}, "got True, 'here', 2 and 1"),
        ({"coordinator": "here:1", "processes": 2, "process": 2}, "got True, 'here:1', 2 and 2"),
        ({"process": 0}, "got True, '', 0 and 0"),
    ],
)
def test_processes_are_named_whole_or_not_at_all(changed, message):
    settings = default_settings()
    settings.distributed.update({"enabled": True} | changed)
    with pytest.raises(UserError, match=re.escape(message)):
        validate(settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_epochs": 0}, "expected pairs to train on or a teacher, got neither"),
        ({"data.source": "questions"}, "expected pairs to train on or a teacher, got neither"),
        ({"teacher.words": True}, "`teacher.words`: expected a teacher, got none"),
        ({"early_stopping.metric": "agreement"}, "expected a teacher, got none"),
        ({"teacher.model": "a", "teacher.vectors": "b"}, "`model` or `vectors`, got both"),
        (
            {"teacher.model": "a", "teacher.epochs": 0, "max_epochs": 0},
            "expected 1 or more of one, got 0 and 0",
        ),
        (
            {"teacher.model": "a", "data.source": "questions"},
            "expected 0, since a list of questions has no pairs, got 10",
        ),
        (
            {"teacher.model": "a", "data.source": "questions", "max_epochs": 0},
            "`early_stopping.metric`: expected agreement",
        ),
        ({"encoder": "bert"}, "expected `bert` with a folder to start from, or `cnn` without one"),
        ({"pretrained": "minilm"}, "got 'cnn' and 'minilm'"),
    ],
    ids=str,
)
def test_teachers_pairs_and_encoders_must_fit_each_other(changed, message):
    settings = default_settings()
    settings.update_from_flattened_dict(changed)
    with pytest.raises(UserError, match=re.escape(message)):
        validate(settings)


def test_several_processes_use_all_their_devices():
    settings = default_settings()
    settings.distributed.enabled = True
    validate(settings)
    settings.devices = 2
    with pytest.raises(UserError, match="`devices`: expected 0 with several processes, got 2"):
        validate(settings)


@pytest.mark.parametrize(
    ("changed", "unread"),
    [
        ({}, []),
        ({"smoothing": 0.1, "symmetric": True}, []),
        ({"margin": 1.0, "temperature": 2.0}, ["margin", "temperature"]),
        ({"prior": "distance", "temperature": 2.0}, []),
        ({"loss": "triplet", "margin": 1.0}, []),
        ({"loss": "triplet", "symmetric": True, "smoothing": 0.0}, ["smoothing", "symmetric"]),
        ({"similarity": "dot", "similarity_scale": 1.0}, ["similarity", "similarity_scale"]),
        ({"loss": "ranking", "similarity_scale": 5.0, "smoothing": 0.0, "symmetric": True}, []),
        (
            {"loss": "ranking", "distance": "euc", "prior": "distance", "margin": 1.0},
            ["distance", "prior", "margin"],
        ),
        ({"loss": "ranking", "scale": 3.0}, ["scale"]),
        ({"loss": "ranking", "similarity": "dot", "scale": 3.0}, []),
        ({"loss": "contrastive", "pair_distance": "euclidean", "scale": 3.0}, []),
        ({"loss": "ranking+contrastive", "scale": 3.0, "margin": 1.0}, ["scale"]),
        ({"loss": "sdml+contrastive", "scale": 3.0, "margin": 1.0, "smoothing": 0.0}, []),
        ({"loss": "contrastive", "sampling": "clusters"}, ["sampling"]),
        ({"loss": "sdml+contrastive", "loss_turns": True, "loss_weights": (1.0, 2.0)}, []),
        ({"loss_turns": True, "loss_weights": (2.0,)}, ["loss_turns", "loss_weights"]),
        ({"data.coherence": "paper"}, ["data.coherence"]),
        ({"data.source": "qa_logs", "data.coherence": "paper"}, []),
        ({"data.source": "qa_logs", "data.max_rows": 5}, ["data.max_rows"]),
        ({"data.source": "synthetic", "data.path": "a.tsv"}, ["data.path"]),
    ],
)
def test_what_nothing_reads_is_named(changed, unread):
    settings = default_settings()
    settings.update_from_flattened_dict(changed)
    assert unused_settings(settings) == unread
