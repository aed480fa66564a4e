"""Questions a second of `qpr encode` for a folder of Parquet files, in one process and on Spark.

    python -m benchmarks.parquet_vectors --run runs/quora_distilled [--masters 'local[2]']

Encodes 600,000 questions, those of Quora several times, in row groups of 50,000. The time of Spark
includes its start and that of its workers, each of which makes the encoder's tables.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import tempfile
import time

import pyarrow
from pyarrow import parquet

from qpr_jax.data.quora import read_quora
from qpr_jax.data.sources import find_quora
from qpr_jax.index.parquet_vectors import encode_parquet

ROWS, GROUP = 600_000, 50_000


def main() -> None:
    """Print a row for one process, and one for each master."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="Folder of the encoder.")
    parser.add_argument("--masters", nargs="*", default=["local[1]", "local[2]"], help="Of Spark.")
    given = parser.parse_args()
    questions = read_quora(find_quora()).questions
    texts = [*itertools.islice(itertools.cycle(questions), ROWS)]
    print("| where | seconds | questions a second |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        source = pathlib.Path(temporary, "questions")
        source.mkdir()
        table = pyarrow.table({"id": range(ROWS), "question": texts})
        parquet.write_table(table, source / "questions.parquet", row_group_size=GROUP)
        for number, master in enumerate(["", *given.masters]):
            start = time.perf_counter()
            out = pathlib.Path(temporary, str(number))
            encode_parquet(source, out, given.run, spark=master, log=lambda line: None)
            seconds = time.perf_counter() - start
            name = f"Spark, `{master}`" if master else "one process"
            print(f"| {name} | {seconds:.1f} | {ROWS / seconds:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
