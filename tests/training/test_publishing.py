"""Model cards: of names and settings that contain markup, and of runs with few settings."""

import json

from qpr_jax.encoders.encoder import EncoderSummary
from qpr_jax.training.publishing import escape_markdown, model_card, publish
from tests.pair_model.models import plain_model
from tests.runs import write_encoder

SUMMARY = EncoderSummary("qpr_jax", "An encoder of two words.", 2, limits=("It reads two words.",))


class StubEncoder:
    fingerprint = "0123"
    dimension = 4

    def __init__(self, **settings):
        self.settings = settings

    def summary(self):
        return SUMMARY


def write_run(folder, more=None, **settings):
    train = {"questions": 1000, "pairs": 500, "non_duplicates": 20}
    data = {"questions": 1200, "unlabelled": 30, "splits": {"train": train}}
    report = {"encoder": "0123", "data": data, "timing": {"steps": 7}} | (more or {})
    (folder / "report.json").write_text(json.dumps(report))
    (folder / "run.json").write_text(json.dumps(settings))


def card_of(folder, name="mine", *, encoder=None, licence="", data=""):
    encoder, model = encoder or StubEncoder(), plain_model()
    return model_card(name, encoder, folder, model, licence=licence, data=data)


def test_the_card_says_what_a_model_learned_from(tmp_path):
    """That of pairs is in the tests of a whole run."""
    taught = {"teacher.fingerprint": "ab"}
    for settings, learned in (
        ({}, "None here: the model was not trained further before it was published.\n"),
        (taught, "It learned a teacher's vectors of 1,030 questions.\n"),
        ({"pretrained.fingerprint": "cd"}, "| it started from the encoder | `cd` |\n"),
    ):
        write_run(tmp_path, max_epochs=0, **settings)
        card = card_of(tmp_path)
        assert f"\n{learned}" in card


def test_the_card_repeats_what_the_packaged_encoder_learned_from(tmp_path):
    publish("open_student", tmp_path / "mine", licence="apache-2.0")
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "- CLINC150 (Larson and others, 2019; CC BY 3.0)" in card
    write_encoder(tmp_path / "other")
    publish(tmp_path / "other", tmp_path / "theirs")
    assert "CC BY" not in (tmp_path / "theirs" / "README.md").read_text()


def test_markup_in_names_and_settings_is_shown_as_it_is(tmp_path):
    write_run(tmp_path, max_epochs=0, **{"data.source": "a`|<b>\n\x1b[31m"})
    card = card_of(
        tmp_path,
        "<img src=x> *a*_b_ [c](d)",
        licence='x"\n---\n<script>|',
        data="ours\n---\n## Use\n<b>",
    )
    assert r"# &lt;img src=x> \*a\*\_b\_ \[c\](d)" in card
    assert r'license: "x\"\n---\n<script>|"' in card
    assert r'Of the weights: x" --- &lt;script>\|.' in card
    assert r"| data.source | `` a`\|<b> " + "\ufffd[31m `` |\n" in card
    assert "\nours --- ## Use &lt;b>\n" in card
    assert "\x1b" not in card


def test_a_name_that_looks_escaped_is_shown_as_it_is():
    assert escape_markdown("&lt;b> & <i>") == "&amp;lt;b> &amp; &lt;i>"


def test_the_card_names_languages_files_and_their_terms(tmp_path):
    scored = {"language": "de", "sentences": 1000, "to_source": 0.5, "to_target": 0.25}
    found = {"name": "test", "retrieval": {"hits@1": 0.625, "mrr@20": 0.7}}
    sets = [scored | found, scored | {"name": "a.en+a.de"}]
    write_run(tmp_path, {"translations": {"sets": sets}}, **{"teacher.fingerprint": "ab"})
    files = [
        ("multi30k.en.gz+multi30k.de.gz", "de", False),
        ("wiktionary.en-fr.tsv.gz", "fr", True),
        ("Multi30k.test.tsv", "de", False),
        ("ours.tsv", "de", False),
    ]
    keys = ("name", "language", "dictionary")
    named = [dict(zip(keys, file, strict=True)) | {"rows": 1500} for file in files]
    encoder = StubEncoder(translations={"source_language": "en", "files": named})
    lines = card_of(tmp_path, encoder=encoder, licence="mit").splitlines()
    for line in (
        'language: ["en", "de", "fr"]',
        "| `multi30k.en.gz+multi30k.de.gz` | de | 1,500 sentences | Multi30k: for research only |",
        "| `wiktionary.en-fr.tsv.gz` | fr | 1,500 dictionary entries | Wiktionary: CC BY-SA |",
        "| `ours.tsv` | de | 1,500 sentences | not stated here |",
        "| `test` | de | 1,000 | 0.500 | 0.250 | 0.625 |",
        "| `a.en+a.de` | de | 1,000 | 0.500 | 0.250 |  |",
    ):
        assert line in lines
    terms = "as the names of their files say: Multi30k: for research only; Wiktionary: CC BY-SA."
    assert any(line.endswith(terms) for line in lines)
