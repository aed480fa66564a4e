"""Deduplicate a DataFrame of pandas: groups of questions that mean the same, and one row of each.

    pip install . pandas -c constraints.txt
    python examples/deduplicate_dataframe.py

`minilm`, the default encoder, needs no training. It gives each pair a score, 0 to 1: look at the
pairs that are printed, and move the threshold. An encoder of your own without scores takes
`max_distance=0.3`, a squared distance, instead (docs/duplicates.md).
A table of Polars is deduplicated alike: `polars.DataFrame(found.to_arrow("groups"))`.
"""

import pandas

from qpr_jax import find_duplicates

TICKETS = pandas.DataFrame(
    {
        "ticket": ["T-1", "T-2", "T-3", "T-4", "T-5"],
        "question": [
            "How do I reset my password?",
            "how can i reset my password",
            "Where can I download my invoice?",
            "How do I reset my password?",
            "Which browsers do you support?",
        ],
        "votes": [3, 12, 5, 1, 2],
    }
)


def deduplicate(table: pandas.DataFrame, threshold: float) -> pandas.DataFrame:
    """The rows that stay, the one with the most votes of each group, and how many each is for."""
    found = find_duplicates(
        table, id_column="ticket", threshold=threshold, keep="max:votes", groups="complete"
    )
    print(found.to_pandas()[["id1", "id2", "score", "question1", "question2"]])
    return found.to_pandas("deduplicated").rename(columns={"rows": "stands_for"})


if __name__ == "__main__":
    print(deduplicate(TICKETS, threshold=0.5).to_string(index=False))
