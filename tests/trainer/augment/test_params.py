import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.augment import params

GOLDEN_BITS = [[2864887121, 2832448516], [1736697832, 1162468809], [596849323, 1913743567]]
GOLDEN_CROP = {"crop_area": 0.552059, "crop_aspect": 0.861358, "crop_y": 0.795209}
GOLDEN_LIGHT = GOLDEN_CROP | {"crop_x": 0.049552, "flip": 0.0}
MANY = 20_000
# Of a statistic that is normal with variance 1, or nearly so; the draws are fixed, so a test
# that passes once always does.
SIGMAS = 4.5

positions = st.integers(0, 2**40)
seeds = st.integers(0, 2**31 - 1)


def _draw(level, seed, position):
    drawn = params.draw_params(level, seed, position)
    return {name: value.numpy() for name, value in drawn.items()}


def test_draws_never_change_between_versions():
    """A run that is resumed with a newer version must go on with the same pictures."""
    drawn = params.random_bits(7, tf.constant([0, 1, 2**33 + 5], tf.int64), 2, 1).numpy()
    assert drawn.tolist() == GOLDEN_BITS
    light = _draw("light", 7, tf.constant([1000], tf.int64))
    assert {name: round(float(value[0]), 6) for name, value in light.items()} == GOLDEN_LIGHT


@settings(max_examples=20, deadline=None)
@given(st.lists(positions, min_size=2, max_size=40), seeds, st.data())
def test_any_slice_of_a_batch_draws_the_same(chosen, seed, data):
    """To the last bit, which a sine would not keep: its vectorised loop has a remainder."""
    cut = data.draw(st.integers(1, len(chosen) - 1))
    whole = _draw("strong", seed, tf.constant(chosen, tf.int64))
    first = _draw("strong", seed, tf.constant(chosen[:cut], tf.int64))
    second = _draw("strong", seed, tf.constant(chosen[cut:], tf.int64))
    for name, values in whole.items():
        np.testing.assert_array_equal(values, np.concatenate([first[name], second[name]]))


def test_strong_stays_within_its_strengths_and_pairs_share_how_they_are_mixed():
    drawn, strong = _draw("strong", 2, tf.range(MANY, dtype=tf.int64)), params.STRONG
    limits = {
        "half_tangent": (-math.tan(math.radians(7.5)), math.tan(math.radians(7.5))),
        **dict.fromkeys(("brightness", "contrast", "saturation"), (0.7, 1.3)),
        "noise_std": (0, strong.noise_std),
        "erase_area": strong.erase_area,
        "erase_aspect": (0.3, 1 / 0.3),
    }
    for name, (least, greatest) in limits.items():
        reach = greatest - least
        assert least - 1e-5 <= drawn[name].min() <= least + 0.01 * reach, name
        assert greatest - 0.01 * reach <= drawn[name].max() <= greatest + 1e-5, name
    assert abs(drawn["erase"].mean() - 0.25) < SIGMAS * 0.5 / math.sqrt(MANY)
    # Flat rectangles are as likely as tall ones.
    assert np.mean(np.log(drawn["erase_aspect"])) == pytest.approx(0, abs=0.02)
    # A pair shares how it is mixed and nothing else.
    for name in ("mix", "mix_share", "mix_y", "mix_x"):
        np.testing.assert_array_equal(drawn[name][0::2], drawn[name][1::2])
        assert len(np.unique(drawn[name][0::2])) > 2
    assert not np.array_equal(drawn["crop_y"][0::2], drawn["crop_y"][1::2])
    for kind in (params.MIXUP, params.CUTMIX):
        assert abs(np.mean(drawn["mix"][0::2] == kind) - 0.25) < SIGMAS * 0.5 / math.sqrt(MANY / 2)
