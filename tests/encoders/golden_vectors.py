"""Write the vectors of a golden file anew, by sentence-transformers; its sentences stay.

    python -m tests.encoders.golden_vectors tests/encoders/tiny_bert tests/encoders/tiny_bert/vectors.npz
    python -m tests.encoders.golden_vectors FOLDER tests/encoders/minilm_vectors.npz

FOLDER holds all-MiniLM-L6-v2. Needs sentence-transformers, which the project does not depend on;
version 6.2.0 wrote the files in the repository.
"""  # noqa: E501

import json
import sys

import numpy as np


def main(model: str, path: str) -> None:
    from sentence_transformers import SentenceTransformer

    with np.load(path) as file:
        sentences = str(file["sentences"])
    vectors = SentenceTransformer(model, device="cpu").encode(json.loads(sentences))
    np.savez_compressed(path, sentences=sentences, vectors=vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])
