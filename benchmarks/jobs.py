"""The benchmarks whose figures the pages quote: the jobs of `benchmarks.all`."""

from __future__ import annotations

import dataclasses
import string


@dataclasses.dataclass(frozen=True)
class Job:
    """A program and its arguments.

    program: a module of benchmarks/, or the full name of another module.
    arguments: with names in braces: of a run, its folder; `python`, `queries`, `before` are options
      of `benchmarks.all`, and `trainings`; `data` is $QPR_DATA_DIR; `new` is a folder that does not
      exist.
    prefix: words before the command.
    """

    program: str
    arguments: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    prefix: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        return self.program if "." in self.program else f"benchmarks.{self.program}"

    def needs(self) -> set[str]:
        """The names that the arguments need."""
        names = (name for _, name, _, _ in string.Formatter().parse(self.arguments))
        return {name for name in names if name and name != "new"}

    def words(self, given: dict[str, str]) -> list[str]:
        """The arguments, with what is given in the place of names."""
        return [word.format(**given) for word in self.arguments.split()]


_HUGE_PAGES = (("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),)
_MILLIONS = "--run {quora_sdml} --folder {new} --probes 5 10 20 40"
JOBS = {
    "against_torch": Job("against_torch"),
    "asymmetric": Job("asymmetric", "{quora_distilled} {imitation}"),
    "asymmetric_mapped": Job("asymmetric", "{quora_distilled} --map"),
    "coherence": Job("coherence", "{data}/qa_logs"),
    # Indexes {best_half} and {sdml_half} are of IVF2000,SQfp16, by `qpr index --run`. {imitation}
    # is `quora_distilled` with max_epochs=0 and batch.token_dropout=0. Of {quora_best} only speeds
    # and sizes are measured here, so that a run of one epoch does.
    "costs": Job(
        "costs", "--run {quora_sdml} --folder {new} --counts 10000 165000 --max-distance 0.5"
    ),
    "costs_two_million": Job(
        "costs",
        "--run {quora_sdml} --folder {new} --counts 2000000 --commands index encode duplicates "
        "--factory IVF2000,SQ8 --assignments 1 --max-distance 0.5",
    ),
    "cross_encoder": Job("cross_encoder", "--model minilm --pairs 512"),
    "cross_encoder_one_core": Job(
        "cross_encoder", "--model minilm --pairs 512", prefix=("taskset", "-c", "0")
    ),
    "distant_supervision": Job("distant_supervision", "--folder {new} --rows 1000000"),
    "duplicates": Job(
        "duplicates", "--run {quora_sdml} --questions 50000 --cosine 0.85 --other-python {python}"
    ),
    "duplicate_groups": Job("duplicate_groups", "{quora_sdml}"),
    **{
        f"training_{config.split()[0]}": Job(
            "training_times", f"{config} --folder {{trainings}} --replace"
        )
        for config in (
            "distill --flag config.data.path={data}/qa_logs/webquestions.jsonl.gz",
            *("openqa_sdml", "quora_best", "quora_distilled", "quora_distilled_sums", "quora_sdml"),
        )
    },
    "first_use": Job("first_use"),
    "encoding": Job("encoding", "--runs {quora_sdml} {quora_best}"),
    "encoding_presets": Job(
        "encoding",
        "--runs {quora_distilled} {quora_distilled_sums} {quora_sdml} {open_student} "
        "--against wordllama paraphrase_l3 minilm",
    ),
    "guide_times": Job("guide_times", "docs/train.md"),
    "index_settings": Job("index_settings", "--run {quora_sdml}"),
    "install_sizes": Job("install_sizes"),
    "large_batch": Job("large_batch"),
    "lexical_baselines": Job("lexical_baselines"),
    "loss_table": Job(
        "loss", "--sizes 512 2048 8192 16384 --rounds 1 --out results/benchmarks/loss.jsonl"
    ),
    "max_distance": Job("max_distance", "open_student"),
    "milvus_index": Job(
        "milvus_index",
        "--run {quora_distilled} --folder {new} --kills 2 --out results/milvus/figures.json",
    ),
    "missed_pairs": Job("missed_pairs", "--run {quora_sdml} --folder {new} --count 500000"),
    "negatives": Job(
        "qpr_jax.cli.main",
        "negatives {quora_sdml} {data}/quora/quora_duplicate_questions.tsv --split train "
        "--out {new}.tsv --from-rank 10 --count 2 --seed 0 --json",
    ),
    "one_query": Job("one_query", "--run {quora_distilled} --checkout {before} --rounds 3"),
    "opening": Job("opening", "--folder {new} --count 2000000"),
    "packaged_model": Job("packaged_model"),
    "public_encoders": Job("public_encoders"),
    "pair_probabilities": Job("pair_probabilities", "{quora_sdml}"),
    "parquet_vectors": Job("parquet_vectors", "--run {quora_distilled}"),
    "loss_precision": Job("precision"),
    "reranking_distilled": Job("reranking", "{quora_distilled}"),
    "reranking_memory": Job("reranking", "--questions 10000000"),
    "reranking_sdml": Job("reranking", "{quora_sdml}"),
    "reranking_sdml_50": Job("reranking", "{quora_sdml} --candidates 50"),
    "review": Job("review", "--run {quora_sdml}"),
    "ring": Job("ring", "--devices 4 --sizes 8192"),
    "run_sizes": Job(
        "run_sizes",
        "{quora_sdml} {quora_best} {quora_distilled} {quora_distilled_sums} open_student minilm",
    ),
    "serving_best": Job("serving", "--index {best_half} --queries {queries} --minutes 1"),
    "serving_sdml": Job("serving", "--index {quora_sdml} --queries {queries} --minutes 1"),
    "serving_sdml_half": Job("serving", "--index {sdml_half} --queries {queries} --minutes 1"),
    "string_ids": Job("string_ids", "--folder {new} --repeats 2"),
    **{
        f"{name}_million": Job("ten_million", f"--count {count} {_MILLIONS}")
        for name, count in (("one", 10**6), ("ten", 10**7), ("thirty", 3 * 10**7))
    },
    "tokenizing": Job(
        "tokenizing",
        "--questions {data}/quora/quora_duplicate_questions.tsv --max-rows 20000 --rounds 3",
    ),
    "train_step": Job("train_step", "", _HUGE_PAGES),
    "train_step_small_pages": Job("train_step", "", (("GLIBC_TUNABLES", ""),)),
    "transformer_encoding": Job("transformer_encoding", "--torch-python {python}"),
    "typos": Job("typos", "{quora_distilled} {english_subwords}"),
}
