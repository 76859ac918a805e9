"""The data sets of a mix: one form, their splits one after the other, their shares."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from imageshards.errors import UserError
from tests.support.reader_sets import CLASSES, FEATURES, IMAGE
from trainer.config import ReadConfig, join_paths, split_paths
from trainer.dataset.manifest import find_split, train_split, validation_split
from trainer.dataset.mix import data_set_of_mix
from trainer.dataset.spec import DataSet, FeatureSpec, ImageSpec, Shard, Split

CONFIG = ReadConfig("a,b")


def _set(name: str, splits: dict[str, int] | None = None, **changes: Any) -> DataSet:
    """A data set that exists on paper only: one shard of that many records a split."""
    made = {
        split: Split(split, (Shard(f"{name}/{split}", count, 10 * count),))
        for split, count in (splits or {"train": 4}).items()
    }
    dataset = DataSet(name, made, CLASSES, IMAGE, FEATURES, fingerprint=name)
    return dataclasses.replace(dataset, **changes)


def _join(*parts: DataSet) -> DataSet:
    return data_set_of_mix(CONFIG, parts)


def _image(**options: Any) -> ImageSpec:
    return dataclasses.replace(IMAGE, options=options)


def test_splits_come_one_after_the_other_and_know_their_data_sets() -> None:
    a, b = _set("a", {"train": 4, "test": 1}), _set("b", {"train": 3})
    joined = _join(a, b)
    train = joined.splits["train"]
    assert [shard.path for shard in train.shards] == ["a/train", "b/train"]
    assert (train.num_records, joined.splits["test"].num_records) == (7, 1)
    assert joined.by_part(train) == [(a, a.splits["train"]), (b, b.splits["train"])]
    assert [own.num_records for _, own in joined.by_part(joined.splits["test"])] == [1, 0]
    assert joined.data == "a,b" and not joined.adopted
    assert joined.fingerprint != _join(b, a).fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"features": FEATURES | {"image/class/label": FeatureSpec("string", ())}},
            "the form of the class is int64 in a and string in b; .* build --input a --input b",
        ),
        ({"classes": CLASSES[::-1]}, "the classes is ant, bee, cat in a and cat, bee, ant in b"),
        ({"classes": ()}, "the classes is ant, bee, cat in a and none in b"),
        ({"label_offset": 1}, "the first class id is 0 in a and 1 in b"),
        ({"label_feature": "number"}, "the feature of the class is image/class/label in a and num"),
        ({"image_feature": "text"}, "the feature of the picture is image/encoded in a and text"),
        ({"image": _image(size=128)}, "the picture option size is None in a and 128 in b"),
        ({"image": _image(mode="pad")}, "the picture option mode is None in a and pad in b"),
        (
            {"image": dataclasses.replace(IMAGE, channels=1)},
            "the number of channels is 3 in a and 1 in b; expected the same in every data set",
        ),
    ],
)
def test_data_sets_that_do_not_fit_are_refused_with_both_values(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"--data received 'a,b', where {message}"):
        _join(_set("a"), _set("b", **change))


def test_quality_makes_no_difference() -> None:
    image = _join(_set("a", image=_image(quality=90)), _set("b", image=_image(quality=95))).image
    assert image.options["quality"] == 90 and not image.varies


def test_features_are_those_that_all_have_in_the_same_form() -> None:
    features = {**FEATURES, "age": FeatureSpec("int64", None)}
    del features["box"]
    joined = _join(_set("a"), _set("b", features=features))
    assert set(joined.features) == set(FEATURES) - {"age", "box"}


def test_mean_and_deviation_are_those_of_all_pictures() -> None:
    rng = np.random.default_rng(0)
    pixels = [rng.normal(mean, 0.1, (count, 50, 3)) for mean, count in ((0.2, 30), (0.7, 10))]
    parts = []
    for name, values in zip("ab", pixels, strict=True):
        mean, std = values.mean((0, 1)), values.std((0, 1))
        image = dataclasses.replace(IMAGE, mean=tuple(mean), std=tuple(std))
        parts.append(_set(name, {"train": len(values)}, image=image))
    # Nothing is known of the pictures of others' records.
    image = _join(*parts, _set("c", {"train": 100}, adopted=True)).image
    everything = np.concatenate(pixels)
    np.testing.assert_allclose(image.mean, everything.mean((0, 1)))
    np.testing.assert_allclose(image.std, everything.std((0, 1)))


def test_every_data_set_needs_the_split_that_is_named_or_trained_on() -> None:
    joined = _join(_set("a", {"train": 4, "validation": 2}), _set("b", {"test": 3}))
    with pytest.raises(UserError, match="'b', whose splits with records are test; .* train"):
        train_split(joined, None)
    with pytest.raises(UserError, match="--split received 'test'; expected .* validation in 'a'"):
        find_split(joined, "--split", "test")
    # Without a name: what there is to validate on.
    found = validation_split(joined, None)
    assert found is not None and found.num_records == 2


@pytest.mark.parametrize(
    "paths", [("a",), ("a", "b"), ("gs://x/y", "c,d"), ("a,", "b"), (",", "x"), ("a b", "c")]
)
def test_paths_survive_being_joined(paths: tuple[str, ...]) -> None:
    assert split_paths(join_paths(paths)) == paths


def test_a_comma_in_a_path_that_exists_separates_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_paths("a, b") == ("a", "b")
    pathlib.Path("a, b").mkdir()
    assert split_paths("a, b") == ("a, b",)


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        ({"x/a": 0.7, "y/b": 0.3}, (Fraction(7, 10), Fraction(3, 10))),
        ({"a": 3, "b": 1}, (Fraction(3, 4), Fraction(1, 4))),
        ({"b": 0.25, "x/a/": 0.25}, (Fraction(1, 2), Fraction(1, 2))),
    ],
)
def test_shares_are_found_by_path_or_last_folder(
    mix: dict[str, float], expected: Sequence[Fraction]
) -> None:
    assert ReadConfig("x/a,y/b", mix=mix).mix_shares == expected
    assert ReadConfig("x/a,y/b").mix_shares == ()
