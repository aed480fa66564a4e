"""Commands that name no encoder take the one of the package, and say so."""

from qpr_jax import read_encoder
from qpr_jax.encoders.packaged import NAME


def test_commands_default_to_it_in_one_line(qpr, tmp_path):
    (tmp_path / "q.txt").write_text("why is the sea salty\nhow do i cook rice\nwhat is rice\n")
    for command in (
        ("index", "mine", "q.txt"),
        ("duplicates", "q.txt", "--out", "o", "--pairs", 1),
    ):
        status, _, stderr = qpr(*command)
        assert status == 0, stderr
        assert stderr.count(f"encoder: {NAME}, the small English one") == 1
        assert "`--run minilm`" in stderr
    assert read_encoder(tmp_path / "mine" / "export").identity == read_encoder(NAME).identity
