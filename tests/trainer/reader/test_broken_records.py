"""Broken records are found, explained in one sentence, and replaced by placeholders."""

import dataclasses

import pytest

from imageshards.errors import UserError
from imageshards.tfrecord import write_records
from tests.support.external_sets import example, flip_byte, jpeg, records_of, whole_split
from tests.support.trainer_data import make_data_set
from trainer.dataset.manifest import load_manifest, wrong_sizes
from trainer.dataset.spec import FeatureSpec, ReadOptions
from trainer.reader.broken_records import explain, repair
from trainer.reader.find_broken import find_broken

NUM_RECORDS = 20
LABEL, IMAGE = "image/class/label", "image/encoded"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """Shards of 7, 7 and 6 records."""
    return make_data_set(tmp_path / "d", {"train": NUM_RECORDS}, size_px=[(16, 16)])


def shard(folder, index):
    return folder / f"train-{index:05d}-of-00003.tfrecord"


def load(folder):
    return whole_split(load_manifest(str(folder)))


def spoil(folder, index, number, payload):
    """Puts another payload in a record's place; the manifest is none the wiser."""
    path = shard(folder, index)
    payloads = [r.payload for r in records_of(path)]
    payloads[number] = payload
    write_records(str(path), payloads)
    return records_of(path)[number].offset_bytes


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"no example \xff\xfe", "it is no tf.train.Example"),
        (b"", "it is empty"),
        (example({IMAGE: jpeg(size_px=(16, 16))}), f"it has no feature {LABEL} with one value"),
        (example({LABEL: 1}), f"it has no picture in {IMAGE}"),
        (example({LABEL: 1, IMAGE: b""}), f"it has no picture in {IMAGE}"),
        (
            example({LABEL: 3, IMAGE: jpeg(size_px=(16, 16))}),
            f"its {LABEL} is 3, expected 0 to 2 (see label_offset)",
        ),
        (
            example({LABEL: 1, IMAGE: jpeg(size_px=(16, 16))[:300]}),
            "its picture cannot be decoded (it begins with ff d8 ff e0)",
        ),
        (
            example({LABEL: 1, IMAGE: b"BM a bitmap"}),
            "its picture cannot be decoded (it begins with 42 4d 20 61)",
        ),
        (example({LABEL: 1, IMAGE: jpeg(size_px=(16, 20))}), "its picture is not of 16x16 px"),
    ],
)
def test_an_unreadable_record_is_found_with_number_and_offset(folder, payload, reason):
    offset = spoil(folder, 1, 2, payload)
    (found,) = find_broken(load(folder))
    assert dataclasses.astuple(found)[1:4] == (2, 9, offset)
    assert found.path == str(shard(folder, 1))
    assert found.reason.startswith(reason)
    assert find_broken(load(folder), [3, 9, 15]) == [found]
    assert find_broken(load(folder), [3, 8, 15]) == []


def test_a_missing_input_of_the_model_is_found(folder):
    dataset = load_manifest(str(folder))
    extra = {"age": FeatureSpec("float32", ())}
    dataset = dataclasses.replace(dataset, features={**dataset.features, **extra})
    (found,) = find_broken(whole_split(dataset), [4], inputs=extra)
    assert (found.record, found.reason[:20]) == (4, "a feature is missing")


def test_wrong_checksums_and_missing_records_are_found(folder):
    flip_byte(shard(folder, 0), records_of(shard(folder, 0))[3].offset_bytes + 30)
    whole = records_of(shard(folder, 1))
    shard(folder, 1).write_bytes(shard(folder, 1).read_bytes()[: whole[5].offset_bytes])
    shard(folder, 2).unlink()
    found = find_broken(load(folder))
    assert [r.record for r in found] == [3, 12, 13, *range(14, 20)]
    assert [r.number for r in found] == [3, 5, 6, *range(6)]
    assert found[0].reason == "the payload's checksum is wrong"
    assert found[1].reason == "the file ends after 5 of 7 records"
    assert found[1].offset_bytes == whole[5].offset_bytes
    assert {r.reason for r in found[3:]} == {"the file is missing"}
    # Of no size that differs the first shard says nothing.
    assert [s.path for s, _ in wrong_sizes(load(folder).split.shards)] == [
        str(shard(folder, 1)),
        str(shard(folder, 2)),
    ]


def test_records_behind_a_wrong_length_are_lost(folder):
    place = records_of(shard(folder, 0))[4].offset_bytes
    flip_byte(shard(folder, 0), place)
    found = find_broken(load(folder), [0])
    assert [(r.record, r.offset_bytes) for r in found] == [(4, place), (5, place), (6, place)]
    assert found[2].reason == "lost behind the damage to record 4"


def test_surplus_records_are_reported_once_per_shard(folder):
    path = shard(folder, 1)
    payloads = [r.payload for r in records_of(path)]
    write_records(str(path), [*payloads, b"more", b"and more"])
    (found,) = find_broken(load(folder))
    offset = records_of(path)[7].offset_bytes
    assert (found.number, found.record, found.offset_bytes) == (7, -2, offset)
    assert "7 records it should have, for 2 more" in found.reason


def test_the_error_names_file_record_offset_and_remedy(folder):
    offset = spoil(folder, 1, 2, b"no example")
    selection = load(folder)
    found = find_broken(selection)
    told = str(explain(ValueError("x"), selection, found))
    assert told.count("\n") == 0
    assert f"{shard(folder, 1)}, record 2 at byte {offset}: it is no tf.train.Example" in told
    assert f"imageshards verify {folder}" in told
    assert "--skip_broken 1" in told
    two = str(explain(ValueError("x"), selection, found * 2))
    assert "(and 1 more)" in two
    assert "--skip_broken 2" in two


def test_without_a_broken_record_the_error_quotes_tensorflow(folder):
    told = str(explain(ValueError("a first\nb second"), load(folder), []))
    assert "(a first)" in told
    external = dataclasses.replace(load(folder).dataset, adopted=True)
    told = str(explain(ValueError("a"), whole_split(external), []))
    assert "imageshards verify" not in told


def numbers(selection):
    """What the reader makes of it: (empty?, record) in order."""
    from trainer.reader.order import ordered_records

    stream = ordered_records(selection, ReadOptions(threads=1))
    return [(payload == b"", int(record)) for payload, record in stream.as_numpy_iterator()]


def test_repair_keeps_every_other_record_in_its_place(tmp_path):
    data = make_data_set(tmp_path / "d", {"train": NUM_RECORDS}, size_px=[(16, 16)])
    selection = load(data)
    paths = [data / s.path for s in (selection.split.shards)]
    payloads = [[r.payload for r in records_of(path)] for path in map(str, paths)]
    payloads[0][3] = b"no example"
    write_records(str(paths[0]), payloads[0])
    write_records(str(paths[1]), payloads[1][:5])
    write_records(str(paths[2]), [*payloads[2], b"surplus"])
    found = find_broken(selection)
    assert [r.record for r in found] == [3, 12, 13, -3]
    repaired = repair(selection, found, str(tmp_path / "repaired"))
    assert repaired.num_records == NUM_RECORDS
    assert wrong_sizes(repaired.split.shards) == []
    empty = [record for is_empty, record in numbers(repaired) if is_empty]
    assert sorted(empty) == [3, 12, 13]
    kept = [f.payload for s in repaired.split.shards for f in records_of(s.path)]
    whole = [p for part in payloads for p in part]
    assert [p for i, p in enumerate(kept) if i not in (3, 12, 13)] == [
        p for i, p in enumerate(whole) if i not in (3, 12, 13)
    ]
    assert [r.reason for r in find_broken(repaired)] == ["it is empty"] * 3


def test_a_missing_shard_becomes_empty_records_and_no_other_is_copied(folder, tmp_path):
    shard(folder, 2).unlink()
    selection = load(folder)
    repaired = repair(selection, find_broken(selection), str(tmp_path / "r"))
    assert repaired.split.shards[:2] == selection.split.shards[:2]
    assert [r.payload for r in records_of(repaired.split.shards[2].path)] == [b""] * 6
    assert len(numbers(repaired)) == NUM_RECORDS


def test_an_unwritable_folder_is_refused(folder, tmp_path):
    (tmp_path / "file").touch()
    selection = load(folder)
    spoil(folder, 0, 0, b"x")
    with pytest.raises(UserError, match="--output received a folder in which .* cannot be written"):
        repair(selection, find_broken(selection), str(tmp_path / "file"))


def test_real_broken_pictures_are_found_exactly_where_the_reader_fails(broken_jpegs, tmp_path):
    import tensorflow as tf

    files = sorted(p for p in broken_jpegs.rglob("*") if p.is_file())
    files = [p for p in files if p.stat().st_size < 200_000][:40]
    data = make_data_set(tmp_path / "d", {"train": 3}, num_shards=1, mode="shortest")
    path = data / "train-00000-of-00001.tfrecord"
    payloads = [example({LABEL: 0, IMAGE: p.read_bytes()}) for p in files]
    size = write_records(str(path), payloads)
    selection = load(data)
    one = dataclasses.replace(selection.split.shards[0], num_records=len(files), num_bytes=size)
    split = dataclasses.replace(selection.split, shards=(one,))
    found = find_broken(dataclasses.replace(selection, split=split))

    def fails(data):
        try:
            tf.io.decode_jpeg(data, channels=3)
        except tf.errors.InvalidArgumentError:
            return True
        return not data

    expected = [i for i, p in enumerate(files) if fails(p.read_bytes())]
    assert expected
    assert len(expected) < len(files)
    assert [r.record for r in found] == expected
