import concurrent.futures
import dataclasses
import itertools
import os
import pathlib

import pytest
import tensorflow as tf

from imageshards.tfrecord import write_records
from tests.support.commands import run_forked
from tests.support.errors import refused
from tests.support.external_sets import flip_byte, records_of
from tests.support.reader_sets import (
    MODEL,
    SIDE_PX,
    choose,
    jpeg,
    make_set,
    training_data,
    value_of,
)
from tests.support.script import run_script
from tests.support.trainer_data import assert_same
from trainer.augment.augmentation import make_augmentation
from trainer.config import ReadConfig
from trainer.dataset.batch import ReplicaSlices
from trainer.dataset.open import wanted_inputs
from trainer.dataset.spec import ModelInputs, ReadOptions
from trainer.reader import pixel_cache
from trainer.reader.described import EvaluationData
from trainer.reader.pieces import PieceReader
from trainer.reader.pixel_cache import PixelCache, decode_once
from trainer.strengths import Augment

SHARDS = [[0, 1, 2, 0], [1, 2, 0], [1], [2, 2], [0, 1, 2]]


@pytest.fixture
def subset(tmp_path):
    return choose(make_set(tmp_path / "set", SHARDS))


@pytest.fixture
def options(tmp_path):
    return ReadOptions(threads=2, cache="pixels", cache_folder=str(tmp_path / "cache"))


class _CountingReader(PieceReader):
    def __init__(self, subset, fails_at=None):
        super().__init__(subset)
        self.pieces, self._fails_at = [], fails_at

    def read(self, piece):
        if piece == self._fails_at:
            raise KeyboardInterrupt
        self.pieces.append(piece)
        return super().read(piece)


def _batches(subset, options, **changes):
    stream = training_data(subset, 4, read_options=options, **changes).batches()
    return list(itertools.islice(stream.as_numpy_iterator(), 5))


@pytest.mark.parametrize(
    ("level", "place", "size"),
    [("none", "host", SIDE_PX), ("none", "host", 5), ("light", "device", 24), ("light", "host", 5)],
)
@pytest.mark.one_row
def test_cached_batches_equal_the_batches_of_jpegs(subset, options, level, place, size):
    features = {name: subset.dataset.features[name] for name in ("age", "tokens")}
    image = subset.dataset.image
    made = make_augmentation(Augment.of(level), place, image=image, size=(size, size), seed=1)
    inputs = ModelInputs((size, size), image, features)
    found, expected = (
        _batches(subset, one, inputs=inputs, augmentation=made) for one in (options, ReadOptions(2))
    )
    # Those of one colour are equal where the host crops, too.
    assert_same(found, expected)


@pytest.mark.parametrize("slices", [ReplicaSlices(), ReplicaSlices(2, 2, 1)])
@pytest.mark.one_row
def test_cached_evaluation_equals_the_evaluation_of_jpegs(subset, options, slices):
    inputs = dataclasses.replace(MODEL, size=(6, 4), eval_crop=0.8)
    found, expected = (
        list(EvaluationData(subset, one, inputs, 4).batches(slices).as_numpy_iterator())
        for one in (options, ReadOptions(2))
    )
    assert_same(found, expected)


def test_a_cache_is_used_again_by_any_reader(subset, options, capfd):
    readers = [_CountingReader(subset) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda reader: decode_once(subset, options, reader, hosts=2), readers))
    assert sorted(piece for one in readers for piece in one.pieces) == list(range(len(SHARDS)))
    said = capfd.readouterr().err
    assert said.count("decoding 13 pictures of train (0.00 GB, on each host that has a") == 1
    decode_once(choose(subset.dataset, ["bee"], ["age>=1"]), options, readers[0])
    assert not capfd.readouterr().err


def test_killed_decoding_continues_where_it_stopped(subset, options, monkeypatch):
    monkeypatch.setattr(pixel_cache, "_SAFE_PIECES", 2)
    with pytest.raises(KeyboardInterrupt):
        decode_once(subset, options, _CountingReader(subset, fails_at=4))
    (part,) = pathlib.Path(options.cache_folder or "").glob("*/*.part")
    for name in ("records", "ends"):  # a write that was cut off
        with open(part / name, "ab") as file:
            file.write(b"torn")
    again = _CountingReader(subset)
    decode_once(subset, options, again)
    assert again.pieces == [3, 4]
    assert_same(_batches(subset, options), _batches(subset, ReadOptions(2)))


def test_a_damaged_record_stays_damaged_in_the_cache(subset, options):
    path = subset.split.paths[1]
    flip_byte(pathlib.Path(path), records_of(path)[1].offset_bytes + 30)
    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match="record 1 at byte .* remove that"):
            _batches(subset, options)
    found, expected = (_batches(subset, one, skip_broken=1) for one in (options, ReadOptions(2)))
    assert_same(found, expected)
    dark = [one["record"][~one["inputs"]["image"].any((1, 2, 3))].tolist() for one in found]
    assert {number for one in dark for number in one} == {5}


def test_the_cache_names_an_undecodable_picture_and_continues_later(subset, options):
    path, picture = subset.split.paths[3], jpeg(value_of(8))
    whole = [one.payload for one in records_of(path)]
    write_records(path, [one.replace(picture, b"x" * len(picture)) for one in whole])
    with refused("data", "record 0 at byte 0"):
        _batches(subset, options)
    write_records(path, whole)
    assert_same(_batches(subset, options), _batches(subset, ReadOptions(2)))


def test_a_full_disk_or_varying_sizes_are_refused_before_decoding(subset, options, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with refused("cache", "0.00 GB are free"):
        decode_once(subset, options, PieceReader(subset))
    files = pathlib.Path(options.cache_folder or "").rglob("*")
    assert not sum(file.stat().st_size for file in files if file.is_file())
    with refused("cache", "cache_folder"):
        decode_once(subset, ReadOptions(1, "pixels"), PieceReader(subset))
    image = dataclasses.replace(MODEL.image, varies=True)
    config = ReadConfig("d", cache="pixels")
    with refused("cache", "'pixels'", "'d'"):
        wanted_inputs(config, dataclasses.replace(subset.dataset, image=image))


def test_a_cache_larger_than_the_memory_is_mapped_without_the_right_to_write(subset, tmp_path):
    memory = pathlib.Path("/proc/meminfo").read_text()
    total = sum(int(line.split()[1]) for line in memory.splitlines() if "Total:" in line[:10])
    image = dataclasses.replace(subset.dataset.image, size=(16384, 16384))
    large = dataclasses.replace(subset, dataset=dataclasses.replace(subset.dataset, image=image))
    count = 3 * total * 1024 // (16384 * 16384 * 3)
    (tmp_path / "ends").write_bytes(bytes(8 * count))
    (tmp_path / "records").write_bytes(b"\n\0")
    with open(tmp_path / "pixels", "wb") as file:
        file.truncate((count + 1) * 16384 * 16384 * 3)
        file.seek(-1, os.SEEK_END)
        file.write(b"\7")
    if (tmp_path / "pixels").stat().st_blocks > 1000:
        pytest.skip("the file system has no sparse files")
    rows = PixelCache(str(tmp_path), large).rows(tf.constant([0]), tf.constant([False]))
    corner = tf.slice(rows.pixels, [rows.keys[0], 16383, 16383, 0], [1, 1, 1, 3])
    assert corner.numpy().ravel().tolist() == [0, 0, 7]
    mapped = pathlib.Path("/proc/self/maps").read_text().splitlines()
    assert [line.split()[1] for line in mapped if str(tmp_path) in line] == ["r--s"]


def test_a_limit_on_the_address_space_is_named_before_decoding(tmp_path):
    script = """
        import dataclasses, pathlib, resource, sys
        import tests.support.reader_sets as sets
        from trainer.dataset.spec import ReadOptions
        from trainer.reader.pixel_cache import decode_once

        subset = sets.choose(sets.make_set(pathlib.Path(sys.argv[1]), [[0, 1]]))
        image = dataclasses.replace(subset.dataset.image, size=(8192, 8192))
        dataset = dataclasses.replace(subset.dataset, image=image)
        subset = dataclasses.replace(subset, dataset=dataset)
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 300_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        decode_once(subset, ReadOptions(2, "pixels", sys.argv[1]), None)  # nothing may read
    """
    said = run_forked("tests.support.script", script, tmp_path).stderr.splitlines()[-1]
    assert "UserError: cache received 'pixels'" in said and "ulimit -v unlimited" in said, said
    assert "pixels' of 0.60 GB" in said and "process is limited to " in said, said


@pytest.mark.long
def test_cached_pictures_are_not_copied_into_memory(tmp_path):
    script = """
        import gc, pathlib, sys
        import tests.support.reader_sets as sets
        from trainer.augment.augmentation import make_augmentation
        from trainer.dataset.spec import ReadOptions
        from trainer.reader.pieces import PieceReader
        from trainer.reader.pixel_cache import decode_once
        from trainer.strengths import LIGHT

        def anonymous_mb():
            status = pathlib.Path("/proc/self/status").read_text()
            return int(status.split("RssAnon:")[1].split()[0]) / 1000

        sets.jpeg.__defaults__, sets.SIDE_PX = ((512, 512),), 512
        subset = sets.choose(sets.make_set(pathlib.Path(sys.argv[1]), [[0, 1] * 100]))
        how = {"image": subset.dataset.image, "size": (64, 64), "seed": 1}
        made = make_augmentation(LIGHT, "host", **how)
        options = ReadOptions(2, "pixels", sys.argv[1])
        decode_once(subset, options, PieceReader(subset))
        for one in (ReadOptions(2), options):  # the first warms up
            before = anonymous_mb()
            data = sets.training_data(subset, 4, read_options=one, augmentation=made)
            list(data.batches().take(50))
        assert anonymous_mb() - before < 60, (before, anonymous_mb())  # of 157 MB
        # An iterator keeps the mapping, also at the end of the process.
        iterator = iter(data.batches())
        del data
        gc.collect()
        assert next(iterator)["inputs"]["image"].numpy().any()
    """
    run_script(script, tmp_path)
