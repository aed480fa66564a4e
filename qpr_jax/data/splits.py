"""Training, validation and test questions, so that no meaning stands in two of them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.data.clusters import cluster_pairs, linked
from qpr_jax.data.labeled_pairs import COLUMNS
from qpr_jax.data.quora import QuestionPairs
from qpr_jax.data.tables import read_rows
from qpr_jax.errors import UserError
from qpr_jax.files import Path, write_atomically
from qpr_jax.ids import parse_id
from qpr_jax.text.tokenizer import normalized_text

SPLITS = ("train", "validation", "test")
HELD_OUT = ("validation", "test")
PAIR = ("id1", "id2")
TRAIN, VALIDATION, TEST = range(3)


@dataclass(frozen=True)
class Splits:
    """Which split each question belongs to, and the pairs of each split.

    split_of: int8 [Q], a position in SPLITS for every question. pairs: split -> int32 [P, 2],
    all pairs of the split's clusters, the query first. non_duplicates: split -> int32 [P, 2],
    pairs labelled so with both questions in the split and not in one cluster.
    """

    split_of: np.ndarray
    pairs: dict[str, np.ndarray]
    non_duplicates: dict[str, np.ndarray]


def split_by_cluster(
    data: QuestionPairs,
    clusters: np.ndarray,
    *,
    seed: int = 0,
    held_out_pairs: int = 5000,
    max_held_out_cluster: int = 20,
) -> Splits:
    """Split the questions by cluster, so that scores on one file and seed can be compared.

    Clusters that share a normalised text form one group. Groups with a cluster of more than
    `max_held_out_cluster` questions train. The others, in order of their smallest question id, are
    permuted by `seed`; each goes to validation unless it would lift its pairs above
    `held_out_pairs`, else to test by the same rule, else to training. Questions in no cluster are
    split 80:10:10, by normalised text. UserError where a split gets no pair.
    """
    if seed < 0:
        raise UserError(f"`data.split_seed`: expected 0 or more, got {seed}")
    groups = groups_of(data.questions, clusters)
    sizes = np.bincount(clusters[clusters >= 0])
    of_cluster = np.zeros(len(sizes), np.int64)
    of_cluster[clusters[clusters >= 0]] = groups[clusters >= 0]
    # A group of questions in no cluster has no pairs.
    count = int(groups.max(initial=-1)) + 1
    pairs = np.bincount(of_cluster, sizes * (sizes - 1) // 2, minlength=count).astype(np.int64)
    held_back = np.zeros(count, np.bool_)
    held_back[of_cluster[sizes > max_held_out_cluster]] = True
    # A question in no cluster follows its group, but does not decide the group's place.
    decides = (clusters >= 0) | (pairs[groups] == 0)
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, groups[decides], data.ids[decides])

    split_of_group = np.full(count, TRAIN, np.int8)
    filled = {VALIDATION: 0, TEST: 0}
    for group in _shuffled((pairs > 0) & ~held_back, smallest, seed):
        for split in (VALIDATION, TEST):
            if filled[split] + pairs[group] <= held_out_pairs:
                filled[split] += pairs[group]
                split_of_group[group] = split
                break

    alone = _shuffled(pairs == 0, smallest, [seed, 1])
    tenth = len(alone) // 10
    split_of_group[alone[:tenth]] = VALIDATION
    split_of_group[alone[tenth : 2 * tenth]] = TEST

    splits = _collect(data, clusters, split_of_group[groups])
    for name in SPLITS:
        if not len(splits.pairs[name]):
            raise UserError(
                f"expected pairs in each split, got none for {name}, of {pairs.sum()} in all; set "
                f"`data.held_out_pairs` (now {held_out_pairs}) to about a tenth of them, raise "
                f"`data.max_held_out_cluster` (now {max_held_out_cluster}), or give more pairs"
            )
    return splits


def split_by_text(questions: Sequence[str], *, seed: int = 0, most: int = 5000) -> np.ndarray:
    """Which split each question of a list belongs to, int8 [Q], so that no text stands in two.

    80:10:10 by normalised text, at most `most` texts in each of validation and test. UserError
    where a split gets none.
    """
    groups = groups_of(questions, np.full(len(questions), -1))
    count = int(groups.max(initial=-1)) + 1
    held_out = min(count // 10, most)
    if not held_out:
        raise UserError(f"expected at least 10 different questions, got {count}; give more")
    split_of_group = np.full(count, TRAIN, np.int8)
    order = np.random.default_rng([seed, 1]).permutation(count)
    split_of_group[order[:held_out]] = VALIDATION
    split_of_group[order[held_out : 2 * held_out]] = TEST
    return split_of_group[groups]


def groups_of(questions: Sequence[str], clusters: np.ndarray) -> np.ndarray:
    """The group of each question, int64 [Q]: linked by cluster or by normalised text."""
    first_of_text: dict[str, int] = {}
    same_text = [first_of_text.setdefault(normalized_text(q), i) for i, q in enumerate(questions)]
    # One node for each question and, after them, one for each cluster.
    count = len(questions)
    everyone = np.arange(count)
    clustered = np.flatnonzero(clusters >= 0)
    links = np.concatenate(
        [
            np.stack([everyone, np.array(same_text, np.int64)], axis=1),
            np.stack([clustered, count + clusters[clustered].astype(np.int64)], axis=1),
        ]
    )
    return linked(count + int(clusters.max(initial=-1)) + 1, links)[:count]


def other_candidates(pairs: np.ndarray, clusters: np.ndarray, *, seed: int) -> np.ndarray:
    """For each pair a question of another cluster, int [P]: the pairs' candidates, permuted.

    Where one cluster holds more than half of the pairs, so that no permutation will do, questions
    are drawn from all instead.

    pairs: int [P, 2], of three clusters or more among all questions. clusters: int [Q].
    """
    count, own = len(pairs), clusters[pairs[:, 0]]
    rng = np.random.default_rng(seed)
    if np.bincount(own).max() * 2 > count:
        drawn = rng.integers(len(clusters), size=count)
        while len(same := np.flatnonzero(clusters[drawn] == own)):
            drawn[same] = rng.integers(len(clusters), size=len(same))
        return drawn
    shuffled = rng.permutation(count)
    # Shuffled first, so that which clusters meet is drawn; then clusters in a drawn order. Ordered
    # by cluster, a shift by half the pairs leaves every cluster of at most half of them.
    rank_of = rng.permutation(own.max() + 1)
    ordered = shuffled[np.argsort(rank_of[own[shuffled]], kind="stable")]
    result = np.empty(count, np.int64)
    result[ordered] = np.roll(ordered, count // 2)
    return pairs[result, 1]


def write_splits(
    folder: Path, splits: Splits, ids: Sequence[int] | np.ndarray, questions: Sequence[str]
) -> None:
    """Write {train,validation,test}.tsv: a header `id1 id2`, then a pair of ids a line.

    And labelled_{validation,test}.jsonl, of `data.labelled`: these pairs and those labelled
    non-duplicates. And questions.tsv, `id split`, of all questions; `none`:
    of no split, only to be found.
    """
    ids = np.asarray(ids)
    with write_atomically(pathlib.Path(folder) / "questions.tsv", "w") as file:
        file.write("id\tsplit\n")
        names = (*SPLITS, "none")  # the last is that of -1
        split_of = splits.split_of.tolist()
        file.writelines(f"{id}\t{names[i]}\n" for id, i in zip(ids.tolist(), split_of, strict=True))
    for name in SPLITS:
        with write_atomically(pathlib.Path(folder) / f"{name}.tsv", "w") as file:
            file.write("\t".join(PAIR) + "\n")
            file.writelines(f"{a}\t{b}\n" for a, b in ids[splits.pairs[name]].tolist())
    for name in HELD_OUT:
        with write_atomically(pathlib.Path(folder) / f"labelled_{name}.jsonl", "w") as file:
            for pairs, verdict in ((splits.pairs[name], 1), (splits.non_duplicates[name], 0)):
                for a, b in pairs.tolist():
                    row = (questions[a], questions[b], verdict)
                    file.write(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n")


def read_pairs(run: Path, split: str) -> np.ndarray:
    """The pairs of ids int64 [P, 2] that `write_splits` wrote for a split, the query first.

    run: the folder that holds splits/. UserError where it does not, where the split has no pair,
    and, with the line, where the file is not of pairs.
    """
    if split not in SPLITS:
        raise UserError(f"`split`: expected one of {', '.join(SPLITS)}, got {split!r}")
    folder = pathlib.Path(run) / "splits"
    if not folder.is_dir():
        raise UserError(
            f"{run}: expected the folder of a run, with splits/, found none; give one that "
            "`qpr train` or experiments.main made"
        )
    path = str(folder / f"{split}.tsv")
    pairs = []
    for line, fields in read_rows(path, PAIR, format="tsv", remedy="restore the file"):
        ids = [] if isinstance(fields, str) else [parse_id(fields[name]) for name in PAIR]
        if None in ids or len(set(ids)) != len(PAIR):
            got = fields if isinstance(fields, str) else f"got {[*fields.values()]!r:.80}"
            raise UserError(f"{path}, line {line}: expected two ids; {got}; restore the file")
        pairs.append(ids)
    if not pairs:
        raise UserError(f"{path}: expected pairs of the split, got none; hold out more pairs")
    return np.array(pairs, np.int64)


def _shuffled(wanted: np.ndarray, smallest: np.ndarray, seed: int | list[int]) -> np.ndarray:
    """The wanted groups, ordered by their smallest question id and then permuted by `seed`."""
    groups = np.flatnonzero(wanted)
    groups = groups[np.argsort(smallest[groups])]
    return groups[np.random.default_rng(seed).permutation(len(groups))]


def _collect(data: QuestionPairs, clusters: np.ndarray, split_of: np.ndarray) -> Splits:
    pairs = cluster_pairs(clusters)
    labeled = data.pairs[~data.is_duplicate]
    of_pair = clusters[labeled]
    labeled = labeled[(of_pair[:, 0] != of_pair[:, 1]) | (of_pair[:, 0] < 0)]
    ends = split_of[labeled]
    return Splits(
        split_of=split_of,
        pairs={name: pairs[split_of[pairs[:, 0]] == i] for i, name in enumerate(SPLITS)},
        non_duplicates={
            name: labeled[(ends[:, 0] == i) & (ends[:, 1] == i)] for i, name in enumerate(SPLITS)
        },
    )
