"""The program that trains by a named config: its arguments."""

import re

import pytest

from experiments.main import run


@pytest.fixture
def trained(monkeypatch):
    """What `train_and_evaluate` was called with last."""
    given = {}

    def fake(config, workdir, *, overwrite):
        given.update(config=config, workdir=workdir, overwrite=overwrite)
        if config.seed == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("qpr_jax.training.run.train_and_evaluate", fake)
    return given


def test_a_run_is_named_by_its_config_and_settings_are_changed(trained):
    words = ("--config.loss.smoothing=0.2", "--config=synthetic_sdml:smoke", "--config.seed", "5")
    assert run(["main", *words]) == 0
    assert (trained["workdir"], trained["overwrite"]) == ("runs/synthetic_sdml_smoke", False)
    assert (trained["config"].loss.smoothing, trained["config"].seed) == (0.2, 5)
    assert run(["main", "--config", "synthetic_sdml", "--workdir=x", "--overwrite"]) == 0
    assert (trained["workdir"], trained["overwrite"]) == ("x", True)
    with pytest.raises(KeyboardInterrupt):
        run(["main", "--config=synthetic_sdml", "--config.seed=3"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "--workdri=x",
            r"expected --config.SETTING=VALUE, got '--workdri=x' \(did you mean `--workdir`",
        ),
        ("--config=none", "`config`: expected one of .*, or the path of a TOML file, got 'none'"),
        ("--config.seeds=3", "there is no setting `seeds`"),
        ("--overwrite=x", "cannot read the flags: .*overwrite"),
    ],
)
def test_wrong_arguments_are_refused(argument, message, trained, capsys):
    with pytest.raises(SystemExit) as stop:
        run(["main", "--config=synthetic_sdml", argument])
    said = capsys.readouterr().err
    assert (stop.value.code, said.count("\n")) == (2, 1)
    assert re.search(f"^error: {message}", said)
    assert not trained
