"""Keys that are there twice or leave images out, and classes that are renamed."""

import collections

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.inputs import selection
from beam_pipeline.inputs.selection import (
    RefuseDuplicateKeys,
    check_globs,
    read_keys,
    rename_classes,
)
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import user_error_in
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.listings import batches_of


def with_keys(keys: list[str], size: int = 3) -> list[RefBatch]:
    return batches_of([ImageRef(key, f"/{i:03d}.jpg", "x") for i, key in enumerate(keys)], size)


def check(batches: list[RefBatch]) -> None:
    with beam.Pipeline(FnApiRunner()) as pipeline:
        found = pipeline | beam.Create(batches) | beam.Reshuffle() | RefuseDuplicateKeys()
        assert_that(found, equal_to([]))


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (with_keys([*(f"k{i}" for i in range(40)), "k17"]), ["'k17'", "'/017.jpg'", "'/040.jpg'"]),
        ([RefBatch([ImageRef("a.jpg", "/a.jpg", "x")] * 2)], ["'a.jpg' twice", "'/a.jpg'"]),
    ],
)
def test_equal_keys_are_refused_with_both_images(batches, words):
    with pytest.raises(Exception, match="twice") as error:
        check(batches)
    said = str(user_error_in(error.value))
    assert all(word in said for word in (*words, "key_column='none'")), said


def test_equal_hashes_of_two_keys_are_no_duplicate(monkeypatch):
    same = np.int64(7)
    monkeypatch.setattr(selection, "hash_keys", lambda batch: np.repeat(same, len(batch)))
    check(with_keys(["a", "b", "c", "d"]))


@given(st.lists(st.text(st.characters()), max_size=60), st.integers(1, 9))
def test_a_key_is_suspected_exactly_when_it_is_there_twice(keys, num_buckets):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "NUM_BUCKETS", num_buckets)
        patch.setattr(selection, "MAX_SUSPECTS", 100)
        batches = with_keys(keys, 7)
        buckets = collections.defaultdict(list)
        for batch in batches:
            for bucket, hashes in selection.bucketed_hashes(batch):
                buckets[bucket].append(hashes)
        suspects = [each for of in buckets.values() for each in selection.equal_hashes(of)]
        found = [selection.images_with_hashes(batch, suspects) for batch in batches]
        suspected = {key for pairs in found for key, _ in pairs}
    assert suspected == {key for key in keys if keys.count(key) > 1}


def test_one_key_for_all_images_gathers_nothing_large():
    for batch in with_keys(["same"] * 5000, 1000):
        ((_, sent),) = selection.bucketed_hashes(batch)
        assert len(sent) == 16
    assert selection.first_two([["/b"], ["/a", "/c"], ["/d"]]) == ["/a", "/b"]


def test_keys_and_classes_that_no_input_has_end_the_build(tmp_path):
    (tmp_path / "keys.txt").write_text("a2\nx9\nx7\n")
    (tmp_path / "more.txt").write_text("a2\na1\n")
    given = [str(tmp_path / "more.txt"), str(tmp_path / "keys.txt")]
    keys = selection.share_keys(given, str(tmp_path))
    batch = RefBatch([ImageRef("a1", "/in/a1", "cat"), ImageRef("a2", "/in/a2", "dog")])
    for asked, words in (
        ({"excluded": keys}, "keys.txt' with 2 of 3 keys that no input has, 'x7' among them"),
        ({"drop_class": ["cat", "dgo"]}, "'dgo', which no input has; expected one of 'dog', …"),
        ({"class_map": {"dgo": "pet"}}, "'dgo', which no input has; expected one of 'dog', …"),
    ):
        with pytest.raises(Exception) as error, beam.Pipeline(FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create([batch]) | selection.SelectImages(**asked)
        assert words in str(user_error_in(error.value))


def test_classes_are_renamed_and_joined():
    refs = [ImageRef("k", "k", label) for label in ("a", "c", ("a", "b", "c"), None)]
    renamed = rename_classes(RefBatch(refs), {"a": "pet", "b": "pet"}).refs
    assert [ref.label for ref in renamed] == ["pet", "c", ("c", "pet"), None]
    names = ("c", "a", "c")
    columns = {"image/object/class/text": [*names]}
    of_boxes = ImageRef("k", "k", ("a", "c"), columns=columns, box_labels=names)
    (renamed_box,) = rename_classes(RefBatch([of_boxes]), {"a": "pet"}).refs
    assert renamed_box.box_labels == ("c", "pet", "c")
    assert renamed_box.columns == {"image/object/class/text": ["c", "pet", "c"]}


def test_dropped_classes_take_their_images_labels_and_boxes():
    columns = {"image/object/score": [1, 2, 3], "note": "x"}
    refs = [
        ImageRef("bee", "k", "bee"), ImageRef("cat", "k", "cat"), ImageRef("none", "k", ()),
        ImageRef("bees", "k", ("bee",)), ImageRef("two", "k", ("bee", "cat"), columns=columns),
        ImageRef("boxes", "k", ("bee", "cat"), columns=columns, box_labels=("bee", "cat", "bee"),
                 sides=((1.0, 2.0, 3.0),) * 4),
    ]  # fmt: skip
    kept, skipped = selection.drop_classes(RefBatch(refs), {"bee"})
    assert skipped.value == {"dropped_class": 2}
    assert [(ref.key, ref.label, ref.box_labels) for ref in kept.refs] == [
        ("cat", "cat", ()), ("none", (), ()), ("two", ("cat",), ()), ("boxes", ("cat",), ("cat",)),
    ]  # fmt: skip
    assert kept.refs[2].columns == columns
    assert kept.refs[3].columns == {"image/object/score": [2], "note": "x"}
    assert kept.refs[3].sides == ((2.0,),) * 4


def test_a_glob_that_leaves_nothing_out_is_refused():
    found = {"hidden", "excluded_by_glob: a: *", "excluded_by_glob: b"}
    assert check_globs(found, ["a: *", "b"])
    with refused("exclude_glob", "'c'"):
        check_globs(found, ["a: *", "c"])


def test_keys_are_read_from_lines_and_a_dataset(tmp_path):
    every = read_keys(str(Dataset(tmp_path / "a").directory))
    assert len(every) == 30 and every == sorted(every)
    (tmp_path / "keys.txt").write_bytes("\ufeffcat/ü 1.jpg\r\n\r\n#2\n".encode())
    assert read_keys(str(tmp_path / "keys.txt")) == ["#2", "cat/ü 1.jpg"]
    odd = ["a\x0bb", "a\x85b", "a\u2028b", "a\rb"]
    (tmp_path / "odd.txt").write_bytes("\n".join(odd).encode())
    assert read_keys(str(tmp_path / "odd.txt")) == sorted(odd)


def test_a_file_that_names_no_keys_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    for name in ("absent.txt", "empty.txt", "bytes.txt"):
        with refused("exclude", name):
            read_keys(str(tmp_path / name))
