from hypothesis import given
from hypothesis import strategies as st

from trainer.report.charts import Curves, line_chart, scatter_chart


def lines(*values, least=None):
    history = [{"epoch": i, "a": value} for i, value in enumerate(values, 1)]
    return line_chart(Curves("x", "", "a", least), history)


def test_a_line_has_a_gap_where_there_is_no_finite_value():
    chart = lines(0, 1, None, 2, float("nan"), 1)
    assert chart.lines[0].path == "M0 100L20 50M60 0M100 50"
    titles = [dot.title for dot in chart.lines[0].dots]
    assert titles == [
        f"epoch {i}, training: {value}" for i, value in ((1, 0), (2, 1), (4, 2), (6, 1))
    ]
    assert chart.description == "x, , epoch 1 to 6: training 0 to 1."
    assert lines(None, float("inf")) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=60), st.sampled_from([None, 0, 0.1]))
def test_lines_stay_inside_the_picture(values, least):
    chart = lines(*values, least=least)
    assert all(-0.1 <= dot.y <= 100.1 and 0 <= dot.x <= 100 for dot in chart.lines[0].dots)
    assert 2 <= len(chart.ticks) <= 8


def test_points_are_on_two_equal_axes():
    chart = scatter_chart("price", "said", [0, 5, 10, float("nan")], [5, 5, 0, 1])
    assert chart is not None and chart.scale == ("10", "5", "0")
    assert chart.ticks == [(0, "0"), (50, "5"), (100, "10")]
    assert chart.lines[0].path == "M0 100L100 0"
    assert chart.lines[1].path == "M0 50h0M50 50h0M100 100h0"
    assert chart.description == "price, said, 0 to 10: 3 points."
    assert scatter_chart("price", "", [float("inf")], [1]) is None


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=60),
    st.sampled_from([1, 100]),
)
def test_points_stay_inside_the_picture_and_are_not_too_many(points, copies):
    chart = scatter_chart("x", "", *zip(*points * copies, strict=True))
    assert chart is not None
    shown = [tuple(map(float, one.split())) for one in chart.lines[1].path[1:-2].split("h0M")]
    assert all(-0.1 <= side <= 100.1 for point in shown for side in point)
    total = len(points) * copies
    assert len(shown) == total if total <= 2000 else 1000 < len(shown) <= 2000
