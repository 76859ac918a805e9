"""What a person hears of a dataset that trains something else than was meant."""

import pytest

from beam_pipeline.commit.warnings import counts_and_names, of_notes, warnings_of

DEFAULT = ("train", "validation")


def told(counts, splits=DEFAULT, asks_splits=True, **names) -> list[str]:
    images = {split: sum(found.values()) for split, found in counts.items()}
    return warnings_of(counts, images, splits, names, asks_splits)


def even(*splits: str) -> dict[str, dict[str, int]]:
    return {split: {"cat": 5, "dog": 6} for split in splits}


@pytest.mark.parametrize("splits", [DEFAULT, ("train", "test", "eval"), ("training", "val", "dev")])
def test_a_good_dataset_has_no_warning_whatever_its_splits_are_called(splits):
    assert told(even(*splits)) == []


def test_classes_without_a_training_image_are_counted_and_named():
    train = {f"c{i:04d}": 2 * (i >= 93) for i in range(1000)}
    (said,) = told({"train": train, "validation": dict.fromkeys(train, 1)})
    assert said.startswith("93 of 1,000 classes have no image in split 'train': 'c0000', 'c0001'")
    assert "and 88 more" in said and "add images" in said


@pytest.mark.parametrize(
    ("one", "other"), [("cat", "c\u0430t"), ("big  cat", "Big cat "), ("Straße", "STRASSE")]
)
def test_names_that_look_alike_are_a_warning(one, other):
    (said,) = told({"train": {one: 3, other: 4}, "validation": {one: 1, other: 1}})
    assert repr(one) in said and repr(other) in said and "--class_map" in said
    assert ascii(one) in said and ascii(other) in said


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (["train"], "1 split got no image: 'validation'; give a larger fraction by --splits"),
        (["validation", "trian", "test"], "split 'trian' is almost 'train'; rename it"),
        (["validation", "TRAIN", "test"], "split 'TRAIN' is almost 'train'; rename it"),
        (["train", "vaildation", "test"], "split 'vaildation' is almost 'validation'; rename it"),
    ],
)
def test_empty_and_misspelled_splits_are_a_warning(splits, expected):
    (said,) = told(even(*splits))
    assert said.startswith(expected)


def test_a_split_that_no_image_can_get_is_a_warning_with_a_way_that_helps():
    (said,) = told(even("train"), asks_splits=False, given_split=["train"])
    assert "every image its split, 'train', so none is in 'validation'; for other" in said
    (said,) = told(even("train"), given_split=["train"])
    assert "--splits was not applied to images of 'train'" in said


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
def test_names_made_of_several_labels_are_a_warning_with_their_separator(names, separator):
    said = told({"train": dict.fromkeys(names, 3), "validation": dict.fromkeys(names, 1)})
    assert len(said) == bool(separator)
    assert all(f"--label_separator '{separator}'" in each for each in said)


@pytest.mark.parametrize(("classes", "more"), [(10, 0), (40, 3)], ids=["equal", "nearly"])
def test_as_many_classes_as_images_are_a_warning(classes, more):
    (said,) = told({"train": {f"{i}.png": 1 + (i < more) for i in range(classes)}}, ["train"])
    assert said.startswith(f"{classes} classes for {classes + more} images")
    assert "--label_regex" in said


def test_findings_of_the_listing_are_warnings():
    names = {
        "empty_class_folder": [f"c{i}" for i in range(7)],
        "unread_format": [".heic"],
        "unreadable_folder": ["/in/dog"],
        "empty_split_folder": ["test"],
        "unknown_encoding": ["a.zip"],
        "wrapped": ["set/"],
        "split_of_word": ["seg_train as train"],
        "split_below_class": ["test"],
        "given_split": ["train", "val"],
        "without_label": ["label"],
    }
    expected = [
        "7 class folders without an image: 'c0', 'c1', 'c2', 'c3', 'c4' and 2 more",
        "skips for their endings: '.heic'; convert raw pictures",
        "1 folder could not be listed for lack of permissions",
        "1 split folder without a class folder: 'test'",
        "rows with -1 in 'label', as in a test split with hidden labels, have no class",
        "may be unreadable: 'a.zip'; say --zip_encoding",
        "all images are in 'set/'",
        "became splits by a word: 'seg_train as train'",
        "folders called 'test' are inside of class folders",
        "--splits was not applied to images of 'train', 'val'",
    ]
    for said, words in zip(told(even(*DEFAULT), **names), expected, strict=True):
        assert words in said


def test_dropped_boxes_are_warned_of_with_the_options_that_place_them():
    (said,) = of_notes({"boxes_dropped": 2, "not_jpeg": 9})
    assert said.startswith("2 pictures had boxes outside")
    assert "--bbox_format" in said and "--bbox_frame" in said
    assert not [*of_notes({"not_jpeg": 9})]


def test_counts_and_names_separates_names_and_adds_up_counts():
    some = {"hidden": 1, "empty_class_folder: b: c": 1, "excluded_by_glob: *": 3}
    more = {"hidden": 2, "empty_class_folder: a": 2, "other": 1, "excluded_by_glob: b": 4}
    counts, names = counts_and_names([some, more])
    assert counts == {"hidden": 3, "other": 1, "excluded_by_glob": 7}
    assert names == {"empty_class_folder": ["a", "b: c"], "excluded_by_glob": ["*", "b"]}
