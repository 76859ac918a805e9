import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from imageshards import storage
from imageshards.adoption.command import adopt
from imageshards.errors import UserError
from tests.support.pictures import saved as encoded
from tests.support.pictures import scene
from tests.support.served_models import card, network
from tests.support.store_servers import StoreServer, store_server
from tests.support.trainer_data import assert_same, make_dataset
from trainer.__main__ import main
from trainer.commands import parse_config
from trainer.reader.batches import TrainingData, open_data
from trainer.reader.described import EvaluationData
from trainer.serving.pictures import find_files, pictures_of_files
from trainer.serving.predictor import Predictor

Opened = tuple[TrainingData, EvaluationData | None]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    counts = {"train": 40, "validation": 9}
    return make_dataset(tmp_path_factory.mktemp("local"), counts, num_shards=5, size_px=((16, 16),))


# What is below these calls is tried with each store where it is: here one is enough.
@pytest.fixture(scope="module", params=["s3"])
def running(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with store_server(request.param) as server:
        yield server


@pytest.fixture
def store(running, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with running.environment():
        yield running
        running.heal()


def _opened(folder: object, *flags: object) -> Opened:
    more = ("--batch_size", 7, "--seed", 3, "--augment", "none", "--augment_on", "host", *flags)
    return open_data(parse_config([*map(str, ("--data", folder, *more))]).read)


def _batches(data: Opened) -> list[Any]:
    """Two epochs and a bit, from the middle of the first one on, and the validation split."""
    train, validation = data
    batches = list(train.batches(2).take(13).as_numpy_iterator())
    return batches + (list(validation.batches().as_numpy_iterator()) if validation else [])


@pytest.mark.parametrize(
    "running", ["s3", pytest.param("gs", marks=pytest.mark.long)], indirect=True
)
def test_batches_from_a_store_match_the_local_dataset(local, store, tmp_path):
    storage.copy_folder(str(local), remote := store.bucket() + "/sets/photos")
    # One store without further flags, the other with some: each combination takes seconds.
    flags = [] if store.scheme == "s3" else ["--classes", "square,circle"]
    expected = _opened(local, *flags)
    got = _opened(remote, *flags)
    assert got[0].subset.dataset.fingerprint == expected[0].subset.dataset.fingerprint
    assert got[0].subset.split.paths[0].startswith(remote)
    store.clear()
    assert_same(_batches(got), _batches(expected))
    # Ranges are read in place: each piece of a shard, here its only one, once as a pass begins.
    reads = [r for r in store.requests() if r.method == "GET" and "of-00005" in r.target]
    assert 5 <= len(reads) and not (tmp_path / "home").exists()


@pytest.mark.long
def test_adopted_records_in_a_store_are_read_like_local_ones(store, local, tmp_path):
    there, here = f"{store.bucket()}/others", tmp_path / "others"
    here.mkdir()
    for path in local.glob("*.tfrecord"):
        (here / path.name).write_bytes(path.read_bytes())
        storage.copy(str(path), f"{there}/{path.name}")
    pointing = str(tmp_path / "pointing")
    for place, output in ((here, None), (there, None), (there, pointing)):
        adopt(place, output=output)
    expected = _opened(here)
    with pytest.raises(UserError, match=f"'{there}'.*records_root"):
        _opened(pointing)
    for got in (_opened(there), _opened(pointing, "--records_root", there)):
        assert got[0].subset.dataset.fingerprint == expected[0].subset.dataset.fingerprint
        assert_same(_batches(got), _batches(expected))


def test_pictures_in_buckets_are_found_and_read(store: StoreServer) -> None:
    folder = store.bucket() + "/pictures"
    for name in ("b.jpg", "below/a.jpg", "notes.txt"):
        storage.write(f"{folder}/{name}", encoded(scene(60, 50)))
    found = find_files([folder, f"{folder}/none.jpg"])
    assert found == [f"{folder}/{name}" for name in ("b.jpg", "below/a.jpg", "none.jpg")]
    *whole, missing = Predictor(network(card()), card(), pictures_of_files(found)).predict(4)
    assert [row.error for row in whole] == ["", ""] and missing.error == "no such object"


def test_a_missing_bucket_or_dataset_is_one_sentence(store, capsys):
    for folder, expected in (
        (f"{store.scheme}://no-such-bucket/set", "names a bucket that does not exist"),
        (store.bucket() + "/empty", "there is no manifest.json"),
    ):
        assert main(["--data", folder]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and expected in said, said
