import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.augment import geometry
from trainer.strengths import STRONG

sides = st.integers(1, 3000)
units = st.integers(0, 2**24 - 1).map(lambda number: number / 2**24)
WINDOW = geometry.Window(*(tf.constant([value]) for value in (10.0, 20.0, 8.0, 30.0)))


def _window(height, width, size, area, aspect, y, x):
    named = {"crop_area": 0.08 + 0.92 * area, "crop_aspect": aspect, "crop_y": y, "crop_x": x}
    params = {name: tf.constant([value], tf.float32) for name, value in named.items()}
    return geometry.crop_windows(STRONG, params, float(height), float(width), size)


@settings(max_examples=200, deadline=None)
@given(sides, sides, st.sampled_from([(224, 224), (96, 192), (7, 5)]), units, units, units, units)
def test_a_window_has_the_area_drawn_and_an_allowed_aspect(height, width, size, area, aspect, y, x):
    window = [float(value[0]) for value in _window(height, width, size, area, aspect, y, x)]
    top, left, rows, columns = window
    assert all(value == int(value) for value in window)
    assert 0 <= top and 1 <= rows and top + rows <= height
    assert 0 <= left and 1 <= columns and left + columns <= width
    if min(height, width) < 200:
        return
    target, own = size[1] / size[0], width / height
    nearest = min(max(own, target * 3 / 4), target * 4 / 3)
    largest = min(nearest / own, own / nearest)
    # Each side is rounded to a pixel, so both may be wrong by half a one.
    slack = 1 + 0.6 / rows + 0.6 / columns
    share = (0.08 + 0.92 * area) * largest
    assert rows * columns / (height * width) == pytest.approx(share, rel=slack - 1)
    assert target * 3 / 4 / slack <= columns / rows <= target * 4 / 3 * slack


def _corners(window, flip, angle_rad):
    """Input (y, x) of the output's corners, in coordinates that begin at corners of pixels."""
    params = {"half_tangent": tf.constant([math.tan(angle_rad / 2)])}
    params |= {"flip": tf.constant([True])} if flip else {}
    maps = geometry.affine_maps(window, params, (4, 6))
    x_to_xy, y_to_xy = maps.numpy()[0, :6].astype(float).reshape(2, 3)
    corners = np.array([(0, 0), (6, 0), (0, 4), (6, 4)]) - 0.5
    places = np.column_stack([corners, np.ones(4)])
    return np.column_stack([places @ y_to_xy, places @ x_to_xy]) + 0.5


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), units, units, units, units, st.floats(-0.5, 0.5))
def test_bounds_hold_all_a_turned_window_touches(height, width, area, aspect, y, x, angle_rad):
    window = _window(height, width, (4, 6), area, aspect, y, x)
    half_tangent = tf.constant([math.tan(angle_rad / 2)], tf.float32)
    part = geometry.rotated_bounds(window, half_tangent, height, width)
    top, left, rows, columns = (float(value[0]) for value in part)
    assert 0 <= top and top + rows <= height and 0 <= left and left + columns <= width
    corners = _corners(window, False, angle_rad)
    ys, xs = np.clip(corners[:, 0], 0, height), np.clip(corners[:, 1], 0, width)
    assert top <= ys.min() + 1e-3 and ys.max() - 1e-3 <= top + rows
    assert left <= xs.min() + 1e-3 and xs.max() - 1e-3 <= left + columns


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), units, units)
def test_a_shrunk_window_lies_inside_the_shrunk_picture(ratio, height, width, area, y):
    window = _window(height, width, (4, 4), area, 0.5, y, y)
    shrunk = geometry.scale_down(window, tf.constant([float(ratio)]))
    top, left, rows, columns = (int(value[0]) for value in shrunk)
    assert rows >= 1 and top + rows <= math.ceil(height / ratio)
    assert columns >= 1 and left + columns <= math.ceil(width / ratio)
