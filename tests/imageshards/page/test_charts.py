"""Bar charts: which bars there are, how high they are, what is written beside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageshards.page import BarChart, histogram, size, strip
from imageshards.page.charts import MAX_BARS


def titles(chart: BarChart) -> list[str]:
    return [bar.title for bar in chart.bars]


def test_a_histogram_leaves_out_empty_ends_and_its_last_bin_is_open() -> None:
    chart = histogram("x", "", [0, 10, 20, 30], [0, 4, 0, 5])
    assert titles(chart) == ["10 to 20: 4", "20 to 30: 0", "30 and more: 5"]
    assert [text for _, text in chart.ticks] == ["10", "20", "30"]
    closed = histogram("x", "", [0, 10, 20], [0, 4, 0])
    assert titles(closed) == ["10 to 20: 4"]
    assert closed.ticks == [(0, "10"), (100, "20")]
    assert titles(histogram("x", "", [0, 10], [0, 0])) == ["0 to 10: 0"]


def test_a_strip_groups_what_is_too_much() -> None:
    assert titles(strip("x", "", "", [3, 4], "shard")) == ["shard 0: 3", "shard 1: 4"]
    grouped = titles(strip("x", "", "", list(range(300)), "shard"))
    assert len(grouped) == 100
    assert grouped[-1] == "shard 297–299: 297 to 299"


def test_a_strip_names_its_ends() -> None:
    assert strip("x", "", "", [3, 4, 5], "shard").ticks == [(0, "shard 0"), (100, "2")]
    assert strip("x", "", "", [3], "shard").ticks == [(0, "shard 0")]
    named = strip("x", "", "", [3, 4], "rank", ends=("largest", "smallest"))
    assert named.ticks == [(0, "largest"), (100, "smallest")]


@pytest.mark.parametrize(
    ("highest", "scale"),
    [(0, ("1", "0.5")), (13, ("16", "8")), (70, ("80", "40")), (6, ("6", "3"))],
)
def test_the_axis_ends_at_a_number_that_is_easy_to_read(
    highest: int, scale: tuple[str, str]
) -> None:
    assert strip("x", "", "", [highest], "shard").scale == scale


def test_a_unit_is_written_at_the_axis_and_on_hover() -> None:
    chart = strip("x", "", "", [1500, 2000], "shard", size)
    assert chart.scale == ("2 kB", "1 kB")
    assert titles(chart) == ["shard 0: 1.5 kB", "shard 1: 2 kB"]
    assert [(bar.low, bar.high) for bar in chart.bars] == [(75, 75), (100, 100)]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_bars_stay_inside_the_picture(values: list[int]) -> None:
    chart = strip("x", "", "", values, "shard")
    assert 1 <= len(chart.bars) <= MAX_BARS
    assert all(0 <= bar.low <= bar.high <= 100.01 for bar in chart.bars)
    assert all(0 <= position <= 100 for position, _ in chart.ticks)
