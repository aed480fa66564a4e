r"""The student of all-MiniLM-L6-v2 that the package carries: English, small, of open data alone.

    python -m experiments.main --config=open_student
    qpr publish runs/open_student --to qpr_jax/packaged/open_student --licence apache-2.0 \
        --data "$(cat experiments/configs/open_student.md)"

On the Quora pairs, of which it has seen none, H@1 and MRR per query of the test split by exact
search: 0.815 and 0.870, 0.833 and 0.886 with its re-ranker (`python -m benchmarks.packaged_model`);
BM25 has 0.739 and 0.810. Trained on 2 cores of an AMD EPYC (Zen 3) with many other jobs running:
1,866 steps in 34 minutes and the re-ranker in 9, after the teacher's vectors of 160,000 texts,
of which it encodes about 300 a second when idle.
"""

from qpr_jax.training.config import TrainConfig
from qpr_jax.training.overrides import load_config


def get_config() -> TrainConfig:
    """Imitation alone, of sentences, questions and words; a re-ranker that imitates, too."""
    return load_config("open_student")
