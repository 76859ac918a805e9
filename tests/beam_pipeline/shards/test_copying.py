"""Records are read by ranges of their shards, and copied with the label they have now."""

import random
from typing import Any

import pytest

from beam_pipeline.images.read import RECORD
from beam_pipeline.options import UrlOptions
from beam_pipeline.planning.refs import ImageRef
from beam_pipeline.shards import copying
from beam_pipeline.shards.copying import DAMAGED, copy_record, read_files_and_records, read_records
from imageshards import storage
from imageshards.errors import ImageError
from imageshards.example import decode_example, encode_example
from imageshards.tfrecord import read_records as stored_records
from tests.support.dataset_factory import Dataset, jpeg


def refs_of(made: Dataset) -> list[tuple[ImageRef, bytes]]:
    """References to all records of a dataset, in a random order, with their payloads."""
    found = []
    for name, payloads in made.payloads.items():
        path = str(made.directory / name)
        places = [r.offset_bytes for r in stored_records(path)]
        for offset, payload in zip(places, payloads, strict=True):
            features: dict[str, Any] = decode_example(payload)
            key, label = features["image/filename"][0], features["image/class/text"][0]
            ref = ImageRef(
                key.decode(), path, label.decode(), "train",
                size_bytes=len(payload), offset_bytes=offset, form=RECORD,
            )  # fmt: skip
            found.append((ref, payload))
    random.Random(5).shuffle(found)
    return found


@pytest.fixture
def made(tmp_path):
    return Dataset(tmp_path / "a")


@pytest.mark.parametrize("window", [3, 1000])
def test_payloads_come_in_the_order_of_their_references(made, window, monkeypatch):
    monkeypatch.setattr(copying, "_WINDOW_RECORDS", window)
    wanted = refs_of(made)
    assert list(read_records([ref for ref, _ in wanted])) == wanted


def test_neighbours_are_read_together_and_others_apart(made, monkeypatch):
    wanted = refs_of(made)
    asked = []

    def counted(path, *span):
        asked.append(path)
        return storage.backend(path).read_range(path, *span)

    monkeypatch.setattr(storage, "read_range", counted)
    assert list(read_records([ref for ref, _ in wanted])) == wanted
    assert sorted(asked) == sorted({ref.uri for ref, _ in wanted})
    asked.clear()
    monkeypatch.setattr(copying, "_MAX_GAP_BYTES", -1)
    assert list(read_records([ref for ref, _ in wanted])) == wanted
    assert len(asked) == len(wanted)


def test_files_and_records_of_one_shard_keep_their_order(made, tmp_path):
    wanted = refs_of(made)
    for number in range(5):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg(number))
        wanted.insert(number * 7, (ImageRef(path.name, str(path), "cat"), jpeg(number)))
    assert list(read_files_and_records([ref for ref, _ in wanted], 10**6, UrlOptions())) == wanted


def test_a_missing_or_damaged_record_is_an_error_beside_whole_records(made):
    (first, payload), (second, _), *_ = refs_of(made)
    gone = second._replace(uri=second.uri + ".gone")
    replaced = second._replace(version="1-2")
    moved = second._replace(offset_bytes=second.offset_bytes + 1)
    behind = second._replace(offset_bytes=10**6)
    found = [data for _, data in read_records([first, gone, replaced, moved, behind])]
    assert found[0] == payload
    codes = [error.code for error in found[1:] if isinstance(error, ImageError)]
    assert codes == ["not_found", "changed", DAMAGED, DAMAGED]


def test_a_new_label_changes_two_features_and_an_equal_label_none(made):
    ref, payload = refs_of(made)[0]
    before = decode_example(payload)
    copied, features = copy_record(ref, payload, {"cat": 0, "dog": 1})
    assert copied is payload and features == before
    copied, features = copy_record(ref._replace(label="pet"), payload, {"pet": 7})
    changed = {"image/class/label": [7], "image/class/text": [b"pet"]}
    assert decode_example(copied) == features == before | changed


def test_copy_record_refuses_a_record_that_was_not_listed(made):
    (ref, payload), (_, other), *_ = refs_of(made)
    features = decode_example(payload)
    del features["image/width"]
    for found, said in (
        (other, "another record"),
        (encode_example(features), "has no image/width"),
        (b"\xff" * 9, "no tf.train.Example"),
    ):
        with pytest.raises(ImageError, match=said):
            copy_record(ref, found, {"cat": 0, "dog": 1})


def test_a_record_gets_as_many_labels_as_it_is_to_have(made):
    ref, payload = refs_of(made)[0]
    without = {k: v for k, v in decode_example(payload).items() if "class" not in k}
    none = ref._replace(label=None)
    copied, features = copy_record(none, payload, {})
    assert decode_example(copied) == features == without
    assert copy_record(none, copied, {})[0] is copied
    several = ref._replace(label=("b", "a", "b"))
    listed, features = copy_record(several, copied, {"a": 5, "b": 2})
    labels = {"image/class/labels": [2, 5], "image/class/text": [b"b", b"a"]}
    assert decode_example(listed) == features == without | labels
    assert copy_record(several, listed, {"a": 5, "b": 2})[0] is listed
    empty, _ = copy_record(ref._replace(label=()), listed, {})
    labels = {"image/class/labels": [], "image/class/text": []}
    assert decode_example(empty) == without | labels
