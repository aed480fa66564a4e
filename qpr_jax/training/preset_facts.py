"""What each preset is for, and how good, how fast and how long it was, as measured. Loads no JAX.

The figures are those of the table in the README, of the docstrings in `experiments/configs` and of
the pages under results/; a test holds that they are.
"""

from __future__ import annotations

from dataclasses import dataclass

_QUORA = "Quora pairs"
ZEN_3, ZEN_4 = "2 cores of an AMD EPYC (Zen 3)", "2 cores of an AMD EPYC (Zen 4)"
ONE_ZEN_4 = "one core of an AMD EPYC (Zen 4)"


@dataclass(frozen=True, kw_only=True)
class PresetFacts:
    """What was measured of a preset; None where it was not.

    Attributes:
      summary: what is trained.
      data: the data of the preset itself, which PAIRS replace.
      hits_at_1: share of test queries whose first hit, by exact search, is a known paraphrase.
      mrr: mean reciprocal rank of the first known paraphrase, of the same searches.
      reranked_hits_at_1: as `hits_at_1`, after the second stage.
      reranked_mrr: as `mrr`, after the second stage.
      questions_per_second: from strings to vectors, on `speed_machine`.
      minutes: of the whole training, on `training_machine`.
      note: what else there is to know of the figures.
    """

    summary: str
    data: str = _QUORA
    hits_at_1: float | None = None
    mrr: float | None = None
    reranked_hits_at_1: float | None = None
    reranked_mrr: float | None = None
    questions_per_second: int | None = None
    speed_machine: str = ""
    minutes: float | None = None
    training_machine: str = ""
    note: str = ""


FACTS: dict[str, PresetFacts] = {
    "synthetic_sdml": PresetFacts(
        summary="the paper's encoder and loss, smaller, on a generated log; needs no data",
        data="generated log",
        hits_at_1=0.980,
        mrr=0.986,
        minutes=17 / 60,
        training_machine=ZEN_4,
        note="scores are of the generated log, through the index",
    ),
    "quora_sdml": PresetFacts(
        summary="the paper's experiment: convolutional encoder, SDML",
        hits_at_1=0.762,
        mrr=0.822,
        reranked_hits_at_1=0.866,
        reranked_mrr=0.907,
        questions_per_second=166_492,
        speed_machine=ZEN_4,
        minutes=10,
        training_machine=ZEN_4,
    ),
    "quora_best": PresetFacts(
        summary="`quora_sdml` with what improves it beyond the paper",
        hits_at_1=0.818,
        mrr=0.875,
        questions_per_second=66_410,
        speed_machine=ZEN_3,
        minutes=28,
        training_machine=ONE_ZEN_4,
    ),
    "quora_distilled": PresetFacts(
        summary="a convolutional student of all-MiniLM-L6-v2, then SDML; needs the teacher",
        hits_at_1=0.848,
        mrr=0.897,
        reranked_hits_at_1=0.879,
        reranked_mrr=0.920,
        questions_per_second=97_644,
        speed_machine=ZEN_4,
        minutes=13,
        training_machine=ZEN_4,
        note="half of the time is the teacher's",
    ),
    "quora_distilled_sums": PresetFacts(
        summary="`quora_distilled` with rare words as sums of n-grams, and the sum of embeddings",
        hits_at_1=0.857,
        mrr=0.904,
        reranked_hits_at_1=0.878,
        reranked_mrr=0.921,
        questions_per_second=80_431,
        speed_machine=ZEN_4,
        minutes=15,
        training_machine=ZEN_4,
        note="re-ranked by one seed; half of the time is the teacher's",
    ),
    "multilingual_distilled": PresetFacts(
        summary="a student of all-MiniLM-L6-v2 that also knows German, by sentences with "
        "translations",
        data="Quora, translations",
        hits_at_1=0.854,
        mrr=0.901,
        note="docs/multilingual.md has what it needs, and how to take other languages",
    ),
    "quora_multitask": PresetFacts(
        summary="two losses at once, to find duplicates and to classify pairs",
        note="as fast as `quora_best`; docs/losses.md has its scores",
    ),
    "openqa_sdml": PresetFacts(
        summary="the paper's experiment on logs of questions and answers",
        data="logs with answers",
        hits_at_1=0.784,
        mrr=0.816,
        minutes=2.5,
        training_machine=ZEN_4,
        note="scores are of the logs, through the index; as fast as `quora_sdml`",
    ),
    "distill": PresetFacts(
        summary="a student of all-MiniLM-L6-v2, without labels; set data.path",
        data="list of questions",
        minutes=3.1,
        training_machine=ZEN_4,
        note="0.658 agreement with the teacher after training on 5,810 questions; as fast as "
        "`quora_distilled`",
    ),
    "open_student": PresetFacts(
        summary="the small English encoder that the package carries, of openly licensed text alone",
        data="Tatoeba, logs",
        hits_at_1=0.815,
        mrr=0.870,
        reranked_hits_at_1=0.833,
        reranked_mrr=0.886,
        questions_per_second=72_997,
        speed_machine=ZEN_4,
        note="scores are of the Quora pairs, which it has not seen; docs/packaged.md has more",
    ),
    "add_language": PresetFacts(
        summary="German for `quora_distilled`, whose index stays as it is; set encoder.pretrained",
        data="Quora, translations",
        hits_at_1=0.851,
        mrr=0.899,
        minutes=7,
        training_machine=ZEN_3,
        note="as fast as the encoder that gets the words; docs/add_language.md has its German",
    ),
    "quora_minilm": PresetFacts(
        summary="all-MiniLM-L6-v2 as it is, indexed and scored; nothing is trained",
        hits_at_1=0.873,
        mrr=0.914,
        reranked_hits_at_1=0.894,
        reranked_mrr=0.932,
        questions_per_second=472,
        speed_machine=ZEN_4,
        minutes=11,
        training_machine=ZEN_3,
        note="the time is that of encoding all questions",
    ),
    "quora_minilm_sdml": PresetFacts(
        summary="all-MiniLM-L6-v2 trained further with SDML",
        hits_at_1=0.867,
        mrr=0.910,
        questions_per_second=257,
        speed_machine=ZEN_3,
        minutes=19,
        training_machine=ZEN_3,
        note="measured with a fifth of the training",
    ),
    "quora_minilm_triplet": PresetFacts(
        summary="all-MiniLM-L6-v2 trained further with triplets",
        hits_at_1=0.777,
        mrr=0.832,
        questions_per_second=263,
        speed_machine=ZEN_3,
        minutes=22,
        training_machine=ZEN_3,
        note="measured with 400 steps, after which it stopped early; the whole epoch needs a GPU",
    ),
    "quora_cross_encoder": PresetFacts(
        summary="a cross-encoder that re-ranks the hits of `quora_distilled`",
        reranked_hits_at_1=0.897,
        reranked_mrr=0.932,
        minutes=114,
        training_machine=ZEN_3,
        note="after `quora_distilled`, whose hits are re-ranked by both stages; the time follows "
        "from the pairs that it trains on a second",
    ),
}
