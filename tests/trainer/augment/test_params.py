import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.augment import params
from trainer.strengths import LIGHT, STRONG, Augment

GOLDEN_BITS = [[2864887121, 2832448516], [1736697832, 1162468809], [596849323, 1913743567]]
GOLDEN_CROP = {"crop_area": 0.552059, "crop_aspect": 0.861358, "crop_y": 0.795209}
GOLDEN_LIGHT = GOLDEN_CROP | {"crop_x": 0.049552, "flip": 0.0}
MANY = 20_000
# Of a statistic that is normal with variance 1, or nearly so; the draws are fixed, so a test
# that passes once always does.
SIGMAS = 4.5

positions = st.integers(0, 2**40)
seeds = st.integers(0, 2**31 - 1)


def _draw(augment, seed, position, distance=1):
    drawn = {**params.draw_params(augment, seed, position)}
    if augment.mixes:
        drawn |= params.draw_pairs(augment, seed, position, distance)
    return {name: value.numpy() for name, value in drawn.items()}


def test_draws_never_change_between_versions():
    """A run that is resumed with a newer version must go on with the same pictures."""
    drawn = params.random_bits(7, tf.constant([0, 1, 2**33 + 5], tf.int64), 2, 1).numpy()
    assert drawn.tolist() == GOLDEN_BITS
    light = _draw(LIGHT, 7, tf.constant([1000], tf.int64))
    assert {name: round(float(value[0]), 6) for name, value in light.items()} == GOLDEN_LIGHT


@settings(max_examples=20, deadline=None)
@given(st.lists(positions, min_size=2, max_size=40), seeds, st.data())
def test_any_slice_of_a_batch_draws_the_same(chosen, seed, data):
    """To the last bit, which a sine would not keep: its vectorised loop has a remainder."""
    cut = data.draw(st.integers(1, len(chosen) - 1))
    whole = _draw(STRONG, seed, tf.constant(chosen, tf.int64))
    first = _draw(STRONG, seed, tf.constant(chosen[:cut], tf.int64))
    second = _draw(STRONG, seed, tf.constant(chosen[cut:], tf.int64))
    for name, values in whole.items():
        np.testing.assert_array_equal(values, np.concatenate([first[name], second[name]]))


def test_strong_stays_within_its_strengths():
    drawn = _draw(STRONG, 2, tf.range(MANY, dtype=tf.int64))
    limits = {
        "half_tangent": (-math.tan(math.radians(7.5)), math.tan(math.radians(7.5))),
        **dict.fromkeys(("brightness", "contrast", "saturation"), (0.7, 1.3)),
        "noise_std": (0, 10),
        "erase_area": (0.02, 1 / 3),
        "erase_aspect": (0.3, 1 / 0.3),
    }
    for name, (least, greatest) in limits.items():
        reach = greatest - least
        assert least - 1e-5 <= drawn[name].min() <= least + 0.01 * reach, name
        assert greatest - 0.01 * reach <= drawn[name].max() <= greatest + 1e-5, name
    assert abs(drawn["erase"].mean() - 0.25) < SIGMAS * 0.5 / math.sqrt(MANY)
    # Flat rectangles are as likely as tall ones.
    assert np.mean(np.log(drawn["erase_aspect"])) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("distance", [1, 4, 50])
def test_a_pair_shares_how_it_is_mixed_and_nothing_else(distance):
    drawn = _draw(STRONG, 2, tf.range(MANY, dtype=tf.int64), distance)
    blocks = {name: value.reshape(-1, 2, distance) for name, value in drawn.items()}
    for name in ("mix", "mix_share", "mix_y", "mix_x"):
        np.testing.assert_array_equal(blocks[name][:, 0], blocks[name][:, 1])
        assert len(np.unique(blocks[name][0, 0])) == min(distance, len(np.unique(blocks[name][0])))
        assert len(np.unique(blocks[name])) > 2
    assert not np.array_equal(blocks["crop_y"][:, 0], blocks["crop_y"][:, 1])
    for kind in (params.MIXUP, params.CUTMIX):
        share = np.mean(blocks["mix"][:, 0] == kind)
        assert abs(share - 0.25) < SIGMAS * 0.5 / math.sqrt(MANY / 2)


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        ({"mixup": 0.2}, {params.MIXUP}),
        ({"cutmix": 2}, {params.CUTMIX}),
        ({"mixup": 1, "mix": 0.5}, {params.NO_MIX, params.MIXUP}),
        ({"mixup": 1, "cutmix": 1}, {params.MIXUP, params.CUTMIX}),
    ],
)
def test_pairs_are_mixed_as_the_alphas_ask(numbers, kinds):
    drawn = params.draw_pairs(Augment(**numbers), 2, tf.range(MANY, dtype=tf.int64), 4)
    found, counts = np.unique(drawn["mix"], return_counts=True)
    assert {*found.tolist()} == kinds and (abs(counts / MANY - 1 / len(kinds)) < 0.02).all()


def test_numbers_of_zero_draw_nothing():
    position = tf.range(4, dtype=tf.int64)
    crop = {"crop_area", "crop_aspect", "crop_y", "crop_x"}
    drawn = _draw(Augment(), 1, position)
    assert drawn.keys() == crop
    # The largest crop is around the centre.
    assert {*drawn["crop_area"].tolist()} == {1} and {*drawn["crop_y"].tolist()} == {0.5}
    more = {"flip": ["flip"], "rotate": ["half_tangent"], "noise": ["noise_std", "noise_key"]}
    more["erase"] = ["erase", "erase_area", "erase_aspect", "erase_y", "erase_x"]
    more |= {name: [name] for name in ("brightness", "contrast", "saturation")}
    for name, names in more.items():
        assert _draw(Augment.of("none", **{name: 0.5}), 1, position).keys() == crop | {*names}


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1, 1.5, 2, 8])
def test_shares_have_the_beta_distribution(alpha):
    """By its moments: the variance of Beta(a, a) is 1/(4(2a + 1)), its kurtosis 3 - 6/(2a + 3)."""
    unit = params.unit_floats(tf.cast(tf.range(0, 2**32, 2**13, tf.int64), tf.uint32))
    found = params.beta(unit, float(alpha)).numpy().astype(float) - 0.5
    assert found.min() >= -0.5 and found.max() <= 0.5 and (np.diff(found) >= 0).all()
    assert found.mean() == pytest.approx(0, abs=1e-5)
    assert found.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=2e-3)
    kurtosis = np.mean(found**4) / found.var() ** 2
    assert kurtosis == pytest.approx(3 - 6 / (2 * alpha + 3), rel=0.012)
    quantiles = params.beta_quantiles(alpha)
    assert (quantiles[0], quantiles[2048], quantiles[-1]) == (0, 0.5, 1)
    np.testing.assert_array_equal(quantiles * 2**20 % 1, 0)
    np.testing.assert_array_equal(quantiles + quantiles[::-1], 1)
