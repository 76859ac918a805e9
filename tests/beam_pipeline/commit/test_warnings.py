"""What a person hears of a data set that trains something else than was meant."""

from __future__ import annotations

import unicodedata

import pytest

from beam_pipeline.commit.warnings import counts_and_names, warnings_of

DEFAULT = ("train", "validation")


def told(counts, splits=DEFAULT, **names) -> list[str]:
    images = {split: sum(found.values()) for split, found in counts.items()}
    return warnings_of(counts, images, splits, names)


def even(*splits: str) -> dict[str, dict[str, int]]:
    return {split: {"cat": 5, "dog": 6} for split in splits}


@pytest.mark.parametrize(
    "splits", [DEFAULT, ("train", "test", "eval"), ("training", "val", "dev"), ("train", "valid")],
    ids="-".join,
)  # fmt: skip
def test_a_good_data_set_has_no_warning_whatever_its_splits_are_called(splits):
    assert told(even(*splits)) == []


def test_classes_without_a_training_image_are_counted_and_named():
    train = {f"c{i:04d}": 2 * int(i >= 93) for i in range(1000)}
    rest = {name: 2 - count for name, count in train.items()} | {"c0999": 1}
    (said,) = told({"train": train, "validation": rest})
    assert said.startswith("93 of 1,000 classes have no image in split 'train': 'c0000', 'c0001'")
    assert "and 88 more" in said and "add images" in said


@pytest.mark.parametrize(
    ("one", "other"),
    [("Cat", "cat"), ("big  cat", "Big cat "), ("Straße", "STRASSE"),
     ("cat", "c\u0430t"), ("cat", "ca\u200bt"),
     tuple(unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))],
    ids=ascii,
)  # fmt: skip
def test_names_that_look_alike_are_told(one, other):
    (said,) = told({"train": {one: 3, other: 4}, "validation": {one: 1, other: 1}})
    assert repr(one) in said and repr(other) in said and "--class_map" in said
    assert ascii(one) in said and ascii(other) in said


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (["train"], "1 split of --splits got no image: 'validation'"),
        (["validation", "trian", "test"], "split 'trian' is almost 'train'; rename it"),
        (["validation", "TRAIN", "test"], "split 'TRAIN' is almost 'train'; rename it"),
        (["train", "vaildation", "test"], "split 'vaildation' is almost 'validation'; rename it"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_splits_that_are_not_as_was_meant_are_told(splits, expected):
    (said,) = told(even(*splits))
    assert said.startswith(expected)


def test_a_label_that_is_the_file_name_is_told():
    counts = {
        "train": {f"img_{i}": int(i < 9) for i in range(10)},
        "validation": {f"img_{i}": int(i == 9) for i in range(10)},
    }
    said = told(counts)
    assert said[0].startswith("10 classes for 10 images") and "--label_regex" in said[0]
    assert said[1].startswith("1 of 10 classes has no image in split 'train'")


def test_spellings_of_one_class_are_one_warning():
    names = ("cat", "Cat", "007", "7", "7.0", "dog")
    (said,) = told({"train": dict.fromkeys(names, 3), "validation": dict.fromkeys(names, 1)})
    assert "'cat', 'Cat'; '007', '7', '7.0';" in said and "dog" not in said


@pytest.mark.parametrize(
    ("names", "separator"),
    [
        (["red|round", "red|square", "blue|round", "blue"], "|"),
        (["a, b", "a, c", "b, c"], ","),
        (["a|b", "c|d"], None),  # few
        (["Labrador, yellow", "Poodle, toy", "Collie, rough"], None),  # nothing is repeated
        (["rock", "paper"], None),
    ],
)
def test_names_made_of_several_labels_are_told_with_their_separator(names, separator):
    said = told({"train": dict.fromkeys(names, 3), "validation": dict.fromkeys(names, 1)})
    assert len(said) == bool(separator)
    assert all(f"--label_separator '{separator}'" in each for each in said)


def test_nearly_as_many_classes_as_images_are_told():
    counts = {f"mask_{i}.png": 1 + (i < 2) for i in range(40)}
    (said,) = told({"train": counts, "validation": {**dict.fromkeys(counts, 0), "mask_1.png": 1}})
    assert said.startswith("40 classes for 43 images")


def test_what_the_listing_found_is_told():
    said = told(
        even(*DEFAULT),
        empty_class_folder=[f"c{i}" for i in range(7)],
        empty_split_folder=["test"],
        unread_format=[".heic"],
        given_split=["train", "val"],
        unreadable_folder=["/in/dog"],
    )
    unreadable = said.pop(2)
    assert unreadable.startswith("1 folder could not be listed for lack of permissions")
    assert "'/in/dog'; give this user the permissions" in unreadable
    assert said[0].startswith("7 class folders without an image: 'c0'") and "2 more" in said[0]
    assert "that are not read, passed over by their names: '.heic'; HEIC needs" in said[1]
    assert said[2].startswith("1 split folder without a class folder: 'test'")
    assert said[3].startswith("--splits was not applied to images of 'train', 'val'")


def test_names_are_told_from_counts_and_these_are_added_up():
    skipped = [
        {"hidden": 1, "empty_class_folder: b: c": 1, "excluded_by_glob: *": 3},
        {"hidden": 2, "empty_class_folder: a": 2, "other": 1, "excluded_by_glob: b": 4},
    ]
    counts, names = counts_and_names(skipped)
    assert counts == {"hidden": 3, "other": 1, "excluded_by_glob": 7}
    assert names == {"empty_class_folder": ["a", "b: c"], "excluded_by_glob": ["*", "b"]}
