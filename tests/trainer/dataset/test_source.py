import contextlib
import importlib.util
import itertools
import json
import pickle

import numpy as np
import pytest

import imageshards as ims
from imageshards import storage
from imageshards.example import Values, decode_example
from tests.support.commands import run_module
from tests.support.dataset_factory import Dataset, features_of, jpeg
from tests.support.errors import refused
from tests.support.external_sets import flip_byte
from tests.support.store_servers import store_server

EXTRA = {
    "age": {"dtype": "float32", "shape": []},
    "box": {"dtype": "float32", "shape": [2, 2]},
    "tokens": {"dtype": "int64", "shape": None},
    "words": {"dtype": "string", "shape": None},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset(tmp_path_factory.mktemp("data") / "set")


@pytest.fixture(scope="module")
def made(dataset):
    return dataset.directory


def with_extra(folder):
    dataset = Dataset(folder, {"train": 1}, per_shard=2)
    dataset.manifest["features"] |= EXTRA
    more: dict[str, Values] = {"age": [1.5], "box": [0.0, 0.1, 0.2, 0.3], "words": [b"\xff"]}
    dataset.change_records(lambda number: more | {"tokens": [7] * number})
    return dataset


def test_record_i_is_row_i_of_the_index_in_every_shard(dataset, made):
    data, payloads = ims.open(made), itertools.chain(*dataset.payloads.values())
    for split in data.splits:
        source = data.source(split)
        keys = [record["image/filename"].decode() for record in source]
        assert keys == data.index(split)["key"].to_pylist() and len(source) == len(keys)
        for record, payload in zip(source, itertools.islice(payloads, len(source)), strict=True):
            assert {name: [value] for name, value in record.items()} == decode_example(payload)
    assert source[np.int32(2)] == [*source][2]
    assert len(data.source("val", features=["image/width"])[0]) == 1


@pytest.mark.parametrize("index", [-19, np.int64(18), 10**20, True, 2.0, np.float32(2), "2", None])
def test_invalid_record_numbers_are_refused(made, index):
    is_number = index in (-19, 18, 10**20)
    said = f"index received {index}; expected -18 to 17" if is_number else None
    with pytest.raises(IndexError if is_number else TypeError, match=said):
        ims.open(made).source("train")[index]


def test_negative_numbers_and_slices_work_as_in_a_list(made):
    source = ims.open(made).source("train")
    records = [*source]
    for number in (-1, -18, np.int64(-7)):
        assert source[number] == records[number]
    parts = [(5, 2), (0, 99), (-3, None), (4, 17, 5), (None, None, -1), (np.int64(1), np.int64(3))]
    for part in (slice(*ends) for ends in parts):
        assert source[part] == records[part], part
    assert source.__getitems__([-1, 3]) == [records[-1], records[3]]
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        source[::0]


def test_values_have_the_types_and_shapes_that_the_manifest_says(tmp_path):
    with_extra(tmp_path)
    first, second = ims.open(tmp_path).source("train")
    assert isinstance(first["age"], np.float32) and first["age"] == 1.5
    assert isinstance(first["image/class/label"], np.int64)
    assert np.allclose(first["box"], [[0, 0.1], [0.2, 0.3]])
    assert [t["tokens"].shape for t in (first, second)] == [(0,), (1,)]
    assert second["tokens"].dtype == np.int64 and second["words"].tolist() == [b"\xff"]
    assert first["image/class/text"] == b"cat"


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_pictures_are_decoded_on_request(tmp_path, mode, channels):
    dataset = Dataset(tmp_path, {"train": 1}, per_shard=2)
    levels = {"mean": [0.5] * channels, "std": [1] * channels}
    dataset.manifest["image"] |= {"channels": channels, **levels}
    (shard,) = dataset.payloads
    dataset.replace(shard, 1, features_of(1, 1, image__encoded=[jpeg(5, (20, 10), mode)]))
    record = ims.open(tmp_path).source("train", decode=True)[1]
    assert "image/encoded" not in record and record["image"].dtype == np.uint8
    assert record["image"].shape == (10, 20, channels) and record["image"].flags.writeable
    assert abs(int(record["image"][0, 0, 0]) - 5 * 37) < (4 if channels == 3 else 256)


def test_wrong_split_or_feature_and_missing_shards_are_refused(made, tmp_path):
    data = ims.open(made)
    with refused("split", "'test'"):
        data.source("test")
    with refused("features", "'image/label'", "mean image/clas"):
        data.source("train", features=["image/label"])
    (tmp_path / Dataset(tmp_path).splits["train"][1]).unlink()
    with refused("data", "path received", "train-00001"):
        ims.open(tmp_path).source("train")


def test_a_record_that_is_damaged_or_of_another_form_is_named_by_its_place(tmp_path):
    dataset = with_extra(tmp_path)
    data, (name,) = ims.open(tmp_path), dataset.payloads
    source, offset = data.source("train", decode=True), data.index()["offset"][1].as_py()
    flip_byte(tmp_path / name, offset + 50)
    assert source[0]["age"] == 1.5
    with pytest.raises(ims.RecordError, match=f"record 1 at byte {offset}: the payload's checksum"):
        source[1]
    dataset.replace(name, 0, features_of(0, 0) | {"age": [1.0], "box": [1.0]})
    with pytest.raises(ims.RecordError, match=r"record 0 at byte 0: box has 1 value, not \[2, 2\]"):
        ims.open(tmp_path).source("train")[0]
    dataset.replace(name, 0, features_of(0, 0, image__encoded=[b"none"]))
    with pytest.raises(ims.RecordError, match="record 0 at byte 0: cannot identify image file"):
        ims.open(tmp_path).source("train", features=["image/encoded"], decode=True)[0]


def test_pickled_source_is_small_and_its_repr_names_the_dataset(made, tmp_path):
    source = ims.open(made).source("train")
    sent = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source._ends)) < 8 * len(source) + 300
    assert [*sent] == [*source] and repr(sent) == repr(source)
    assert repr(ims.open(Dataset(tmp_path, per_shard=5).directory).source("train")) != repr(source)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(
    ("loader", "place"), [("torch-spawn", "disk"), ("torch-fork", "gs"), ("grain", "s3")]
)
def test_pytorch_and_grain_loaders_give_each_record_once(loader, place, made):
    package = loader.partition("-")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed; make torch installs it")
    expected = ims.open(made).index("train")["key"].to_pylist()
    with contextlib.ExitStack() as stack:
        folder = str(made)
        if place != "disk":
            server = stack.enter_context(store_server(place))
            stack.enter_context(server.environment())
            folder = f"{server.bucket()}/pets"
            storage.copy_folder(str(made), folder)
        told = run_module("tests.support.source_loaders", loader, folder)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert sorted(found) == sorted(expected) and found != expected


@pytest.mark.process
def test_in_a_store_a_record_costs_one_request_and_a_batch_is_read_in_threads(made):
    with store_server("s3") as server, server.environment():
        folder = f"{server.bucket()}/pets"
        storage.copy_folder(str(made), folder)
        data = ims.open(folder)
        source, places = data.source("train"), data.index("train").to_pylist()
        assert source[0] == ims.open(made).source("train")[0]
        server.clear()
        before = storage.counts()
        assert source[7]["image/filename"] == b"dog/7.jpg"
        spent = storage.counts()
        assert len(server.requests()) == spent.requests - before.requests == 1
        assert spent.bytes_read - before.bytes_read == places[7]["num_bytes"]
        server.clear()
        assert source.__getitems__([3, 11, 3]) == [source[3], source[11], source[3]]
        assert len(server.requests()) == 6  # one range for each
    assert ims.open(made).source("train").__getitems__([3])[0]["image/width"] == 16
