"""`--keep max:` compares numbers, instants and versions; what has no common order is refused."""

import contextlib
import datetime
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpr_jax.duplicates.groups import order_of
from qpr_jax.errors import UserError

ASCENDING = [
    [None, 3, 20],
    ["", "9", "10"],
    ["n/a", "-5", "1e3"],
    ["$950", "$1,200", "$10,000"],
    ["-$5.50", "$0.99", "$ 1,234,567.00"],
    ["(1,200)", "950", "1,200"],
    ["5 %", "12.5%", "100%"],
    ["USD 950", "usd 1,200", "USD 10,000"],
    ["1,5", "2,25", "1.234,5"],
    ["1,5 €", "950,00 €", "1.200,00 €"],
    ["1 200,5", "1\u00a0300", "10\u202f000"],
    ["1'200", "9'999", "1'000'000"],
    ["50,000", "1,00,000", "12,34,567"],
    ["5 kg", "12 kg"],
    ["\u22125", "3", "\u0667"],
    ["-inf", "1", "Infinity"],
    ["false", "true"],
    [False, True],
    ["0.5", "1.25", "1.9"],
    ["1.9.2", "1.10.0", "2"],
    ["v1.9", "v1.10-rc1", "v1.10"],
    ["2.0.0-alpha.1", "2.0.0-beta", "2.0.0"],
    ["2024-05-02T01:00:00+02:00", "2024-05-01T23:30:00Z", "2024-05-01T23:30:00-05:00"],
    ["2023-12-31", "2024-01-01 00:00:01", "2024-01-01T10:00"],
    ["31.12.2023", "01.02.2024"],
    ["2024/5/1", "2024/10/1"],
    ["2024-05-01 10:00:00 UTC", "2024-05-01 10:00:01 UTC"],
    ["Wed, 01 May 2024 22:00:00 +0000", "Thu, 02 May 2024 01:00:00 +0200"],
    ["-0001-01-01", "0000-12-30", "2024-01-01", "9999-12-31", "10001-02-03", "29349-01-26"],
]
REFUSED = [
    ["$5", "€4"],
    ["5", "$4"],
    ["5 kg", "300 g"],
    ["low", "high"],
    ["1.200", "950"],
    ["1.9", "1.10"],
    ["2024-05-01T10:00", "2024-05-01T10:00Z"],
    ["05/01/2024", "06/01/2024"],
    ["1", "soon"],
]


@pytest.mark.parametrize("cells", ASCENDING)
def test_cells_are_in_order(cells):
    """Whatever their order in the table."""
    shuffled = random.Random(0).sample(cells, len(cells))
    keys = dict(zip(shuffled, order_of(shuffled, "value"), strict=True))
    assert sorted(shuffled, key=keys.__getitem__) == cells
    assert len({*keys.values()}) == len(cells)


@pytest.mark.parametrize("cells", REFUSED)
def test_what_has_no_order_is_refused(cells):
    with pytest.raises(UserError, match=r"^`keep`: expected numbers .* in `value`, got .*; write"):
        order_of(["", *cells], "value")


@given(st.lists(st.integers() | st.floats(allow_nan=False)))
def test_numbers_are_in_order(numbers):
    keys = order_of(numbers, "n")
    assert [numbers[i] for i in sorted(range(len(keys)), key=keys.__getitem__)] == sorted(numbers)


@given(st.lists(st.datetimes(timezones=st.timezones() | st.just(datetime.UTC))))
def test_instants_are_in_order(times):
    keys = order_of([time.isoformat() for time in times], "n")
    order = sorted(range(len(keys)), key=keys.__getitem__)
    assert [times[i].timestamp() for i in order] == sorted(time.timestamp() for time in times)


@given(st.lists(st.text(max_size=9), min_size=1, max_size=4))
def test_any_text_has_an_order_or_is_refused(texts):
    with contextlib.suppress(UserError):
        assert len(order_of(texts, "n")) == len(texts)
