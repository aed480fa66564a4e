"""The page and the plot of `benchmarks.accelerator`, from its results alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.measuring import table_lines
from qpr_jax.precision import PRECISIONS

Row = dict[str, Any]
Results = dict[str, Any]

NOT_MEASURED = "not measured"
MOST_FLOORS, FLOORS_FROM, FASTER_FROM = 3, 65_536, 16_384
MOST_WAITED, WAITED_FROM = 0.1, 512
_NAMES = {"tiles": "XLA's tiles", "kernel": "fused kernel", "plain": "plain N x N"}
_NAMES |= {"torch": "PyTorch", "cnn": "CNN", "bert": "BERT"}


def measured(results: Results, part: str, **equal: Any) -> list[Row]:
    """The rows of a part that have a right time, and these values."""
    return [
        row
        for row in results["rows"]
        if row["part"] == part
        and "seconds" in row
        and "wrong" not in row
        and all(row[name] == value for name, value in equal.items())
    ]


def over_floor(row: Row) -> float | None:
    """How many times the floor a case takes."""
    right = "seconds" in row and "wrong" not in row
    return row["seconds"] / row["floor"] if right and row.get("floor") else None


def goals(results: Results) -> list[tuple[str, str]]:
    """Each goal, and whether it is met."""
    return [
        (
            f"the loss with bf16 takes at most {MOST_FLOORS} floors from N = {FLOORS_FROM:,} on",
            _verdict(_floors(results)),
        ),
        (
            f"the kernel is faster than XLA's tiles at every N from {FASTER_FROM:,} on",
            _verdict(_faster(results)),
        ),
        (
            f"the device waits less than {MOST_WAITED:.0%} of the time from N = {WAITED_FROM} on",
            _verdict(
                (row["waited"] < MOST_WAITED, f"{_name(row)} {row['waited']:.1%}")
                for row in measured(results, "step")
                if row["size"] >= WAITED_FROM
            ),
        ),
    ]


def _verdict(found: Iterable[tuple[bool, str]]) -> str:
    found = list(found)
    if not found:
        return NOT_MEASURED
    word = "met" if all(holds for holds, _ in found) else "NOT met"
    return f"{word} ({'; '.join(said for _, said in found)})"


def _floors(results: Results) -> Iterable[tuple[bool, str]]:
    """At each large size, the faster of our two forms."""
    best: dict[int, float] = {}
    for row in measured(results, "loss", precision="bf16"):
        if row["size"] >= FLOORS_FROM and (ratio := over_floor(row)) is not None:
            best[row["size"]] = min(ratio, best.get(row["size"], ratio))
    for size, ratio in sorted(best.items()):
        yield ratio <= MOST_FLOORS, f"N = {size:,}: {ratio:.2f}"


def _faster(results: Results) -> Iterable[tuple[bool, str]]:
    for row in measured(results, "loss", variant="kernel"):
        same = {name: row[name] for name in ("size", "precision")}
        tiles = measured(results, "loss", variant="tiles", **same)
        if row["size"] >= FASTER_FROM and tiles:
            ratio = tiles[0]["seconds"] / row["seconds"]
            yield ratio > 1, f"N = {row['size']:,} {row['precision']}: {ratio:.2f} times as fast"


def page(results: Results, image: str) -> list[str]:
    """The lines of the page."""
    facts = results["facts"]
    lines = [f"# {facts['device']}", ""]
    if results["smoke"]:
        lines += ["**Made with `--smoke`: tiny shapes, no measurement of anything.**", ""]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    peak = results.get("peak_gib")
    lines += [
        f"`{results['command']}`, {facts['date']}; driver {facts['driver']}, {facts['backend']}; "
        f"{versions}; PyTorch: {results['torch']['torch']}. Parts done: "
        f"{', '.join(results['done']) or 'none'}. Peak of the device's memory: "
        f"{NOT_MEASURED if peak is None else f'{peak:.1f} GiB'}.",
        "",
        "The floor of a loss is 6 N^2 d operations, one direction, of a step those of the "
        "encoder's products too, each at the rate of a plain product of that precision here:",
        "",
    ]
    rates = results["rates"]
    lines += table_lines(
        ["precision", "TFLOP/s"],
        [(n, f"{rates[n] / 1e12:.2f}" if n in rates else NOT_MEASURED) for n in PRECISIONS],
    )
    lines += table_lines(["goal", ""], goals(results))
    lines += [f"![Time over the floor by N]({image})", "", "## The loss, forward and backward", ""]
    lines += _loss_table(results)
    lines += ["## Training steps", "", *_step_table(results)]
    return [*lines, "## Encoding", "", *_encoding_table(results)]


def _loss_table(results: Results) -> list[str]:
    rows = [row for row in results["rows"] if row["part"] in ("loss", "torch")]
    rows.sort(key=lambda row: (row["size"], row["precision"], row["variant"]))
    return table_lines(
        ["N", "precision", "", "ms", "floors", "GiB", "error of value", "of gradient"],
        [
            [
                *(f"{row['size']:,}", row["precision"], _NAMES[row["variant"]]),
                *(_time(row), _number(over_floor(row), ".2f")),
                *(_number(row.get("gib"), ".3g"), _number(row.get("error"), ".0e")),
                _number(row.get("gradient_error"), ".0e"),
            ]
            for row in rows
        ],
    )


def _step_table(results: Results) -> list[str]:
    head = ["encoder, N, products", "ms", "floors", "ms in the loop", "pairs/s", "device waits"]
    return table_lines(
        [*head, "GiB", "encode_chunk"],
        [
            [
                *(_name(row), _time(row), _number(over_floor(row), ".2f")),
                *(f"{1e3 * row['loop_seconds']:.4g}", f"{row['size'] / row['loop_seconds']:,.0f}"),
                *(f"{row['waited']:.1%}", f"{row['gib']:.3g}", str(row["encode_chunk"])),
            ]
            if "seconds" in row
            else [_name(row), _time(row), *[""] * 6]
            for row in results["rows"]
            if row["part"] == "step"
        ],
    )


def _encoding_table(results: Results) -> list[str]:
    return table_lines(
        ["encoder, questions, products", "ms", "questions/s", "difference of vectors"],
        [
            [
                *(_name(row), _time(row)),
                *(_number(row.get("per_second"), ",.0f"), _number(row.get("error"), ".0e")),
            ]
            for row in results["rows"]
            if row["part"] == "encoding"
        ],
    )


def _name(row: Row) -> str:
    return f"{_NAMES[row['variant']]}, {row['size']:,}, {row['precision']}"


def _time(row: Row) -> str:
    """Milliseconds, or why there are none: a wrong value has no time."""
    if "wrong" in row:
        return f"**WRONG: {row['wrong']}**"
    if "seconds" in row:
        return f"{1e3 * row['seconds']:.4g}"
    return f"{NOT_MEASURED}: {row.get('left_out', 'ended before')}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def plot(results: Results) -> Any:
    """Time over the floor by N, a line for each form and precision."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    rows = measured(results, "loss") + measured(results, "torch")
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        if (ratio := over_floor(row)) is not None:
            lines.setdefault((row["variant"], row["precision"]), []).append((row["size"], ratio))
    for (variant, precision), points in sorted(lines.items()):
        style = {"kernel": "-", "tiles": "--", "plain": ":", "torch": "-."}[variant]
        label = f"{_NAMES[variant]}, {precision}"
        axis.plot(*zip(*sorted(points), strict=True), style, marker="o", label=label)
    axis.axhline(MOST_FLOORS, color="grey", linewidth=0.5)
    axis.set(xlabel="N", ylabel="time over the floor", xscale="log", yscale="log")
    axis.set_title(results["facts"]["device"] + (", smoke" if results["smoke"] else ""))
    if lines:
        axis.legend(fontsize=7)
    return figure
