"""MixUp and CutMix: labels are the shares of what is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.support.augment_pictures import batch  # noqa: E402
from trainer.augment.params import CUTMIX, MIXUP, NO_MIX, draw_params  # noqa: E402
from trainer.augment.pixels import mix_pairs  # noqa: E402

CLASSES = 3
SIZE = (13, 17)


def _params(kind: float, share: float, count: int = 2, y: float = 0.3, x: float = 0.8) -> Any:
    values = {"mix": kind, "mix_share": share, "mix_y": y, "mix_x": x}
    return {name: tf.fill([count], value) for name, value in values.items()}


def _dark_and_bright() -> dict[str, Any]:
    pictures = np.zeros((2, *SIZE, 3), np.uint8)
    pictures[1] = 255
    return batch(pictures)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.83, 1.0])
def test_cutmix_swaps_a_rectangle_and_labels_are_the_share_of_pixels_seen(share: float) -> None:
    result = mix_pairs(_dark_and_bright(), _params(CUTMIX, share), CLASSES)
    pictures = result["inputs"]["image"].numpy()
    assert set(np.unique(pictures)) <= {0, 255}
    pasted = (pictures[0] == 255).all(-1)
    np.testing.assert_array_equal(pasted, pasted.any(1)[:, None] & pasted.any(0))
    seen = (pictures[0] == 0).mean()
    np.testing.assert_allclose(result["label"][0], [seen, 1 - seen, 0], atol=1e-6)
    # The same rectangle in both.
    np.testing.assert_array_equal(pictures[0], 255 - pictures[1])
    np.testing.assert_allclose(result["label"][1], [1 - seen, seen, 0], atol=1e-6)
    assert seen == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0])
def test_mixup_is_the_weighted_mean_of_both(share: float) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, *SIZE, 1), np.uint8)
    result = mix_pairs(batch(pictures), _params(MIXUP, share), CLASSES)
    expected = share * pictures.astype(float) + (1 - share) * pictures[::-1]
    assert np.abs(result["inputs"]["image"].numpy() - expected).max() <= 0.5 + 1e-3
    np.testing.assert_allclose(
        result["label"], [[share, 1 - share, 0], [1 - share, share, 0]], atol=1e-6
    )


def test_a_pair_that_is_not_mixed_stays_as_it_is() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, *SIZE, 3), np.uint8)
    result = mix_pairs(batch(pictures), _params(NO_MIX, 0.4), CLASSES)
    np.testing.assert_array_equal(result["inputs"]["image"], pictures)
    np.testing.assert_array_equal(result["label"], [[1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("kind", [MIXUP, CUTMIX])
def test_a_record_without_weight_is_mixed_into_no_other(kind: float) -> None:
    given = _dark_and_bright() | {"weight": tf.constant([1.0, 0.0])}
    result = mix_pairs(given, _params(kind, 0.3), CLASSES)
    np.testing.assert_array_equal(result["inputs"]["image"], given["inputs"]["image"])
    np.testing.assert_array_equal(result["label"], [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(result["weight"], [1, 0])


def test_weights_of_classes_are_mixed_like_their_labels() -> None:
    given = _dark_and_bright() | {"weight": tf.constant([1.0, 3.0])}
    result = mix_pairs(given, _params(MIXUP, 0.25), CLASSES)
    np.testing.assert_allclose(result["weight"], [2.5, 1.5])


def test_labels_sum_to_one_and_the_rest_of_the_batch_is_kept() -> None:
    pictures = np.random.default_rng(3).integers(0, 256, (64, *SIZE, 3), np.uint8)
    given = batch(pictures)
    given["inputs"]["age"] = tf.range(64)
    result = mix_pairs(given, draw_params("strong", 5, given["position"]), CLASSES)
    assert result["label"].dtype == tf.float32
    np.testing.assert_allclose(tf.reduce_sum(result["label"], axis=1), 1, atol=1e-6)
    assert set(result) == set(given) and result["inputs"]["image"].dtype == tf.uint8
    for name in ("position", "record"):
        np.testing.assert_array_equal(result[name], given[name])
    np.testing.assert_array_equal(result["inputs"]["age"], tf.range(64))
