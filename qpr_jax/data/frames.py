"""Rows of tables in memory: of pandas, Polars, PyArrow and other libraries that narwhals reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from qpr_jax.data.inputs import short
from qpr_jax.data.tables import Choose, Fields, distinct_names
from qpr_jax.errors import UserError


def is_table(value: object) -> bool:
    """Whether narwhals reads this as a table, or it has an Arrow C stream."""
    has_stream = hasattr(value, "__arrow_c_stream__")
    if isinstance(value, str | bytes | list | tuple | Mapping | Iterator):
        return has_stream
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import DuplicateError

    try:
        wrapped = nw.from_native(value, pass_through=True, allow_series=True)
    except DuplicateError:  # two columns have one name, which `frame_rows` refuses
        return True
    return has_stream if wrapped is value else isinstance(wrapped, nw.DataFrame | nw.LazyFrame)


def frame_rows(table: Any, choose: Choose, source: str) -> Iterator[tuple[int, Fields]]:
    """Yield the position and the fields of each row; see `data.tables.read_rows`."""
    import narwhals.stable.v2 as nw
    from narwhals.exceptions import DuplicateError

    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(table, pandas.DataFrame):
        table = _with_index(table)
        distinct_names([*map(str, table.columns)], source)
        table = table.set_axis([*map(str, table.columns)], axis="columns")
    try:
        frame = nw.from_native(table)
    except TypeError:
        table = _arrow_table(table, source)
        distinct_names(table.column_names, source)
        frame = nw.from_native(table)
    except DuplicateError:
        names = getattr(table, "column_names", None) or [*table.columns]
        what = f"{source}: expected columns with distinct names, got {short(names)}"
        raise UserError(what, remedy="rename some") from None
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    names = [*choose(distinct_names(frame.columns, source))]
    yield from enumerate(frame.select(names).iter_rows(named=True, buffer_size=4096))


def _with_index(table: Any) -> Any:
    """Make columns of the named levels of the index of a pandas frame."""
    if None in table.index.names:
        return table
    return table.reset_index([name for name in table.index.names if name not in table.columns])


def _arrow_table(table: Any, source: str) -> Any:
    """Make a PyArrow table of anything that has an Arrow C stream."""
    try:
        import pyarrow
    except ImportError:
        kind = type(table).__name__
        what = f"{source}: expected a table of pandas, Polars or PyArrow, got {kind}"
        raise UserError(what, remedy="pip install '.[parquet]' in a checkout") from None
    return pyarrow.table(table)
