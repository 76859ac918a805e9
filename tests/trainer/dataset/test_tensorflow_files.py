"""gs:// as TensorFlow reads it itself, and what is found out before it waits."""

from __future__ import annotations

import os
import pathlib
import socket
import time
from collections.abc import Iterator

import pytest

from imageshards import storage
from imageshards.errors import UserError
from imageshards.storage import gcs
from tests.support.commands import run_module
from tests.support.google_front import GoogleFront
from tests.support.store_servers import StoreServer, store_server
from tests.support.trainer_data import make_data_set
from trainer.__main__ import main
from trainer.dataset.tensorflow_files import check_readable, needs_copy

pytestmark = pytest.mark.process

# Nothing of the machine's own may help or hinder.
OF_THE_MACHINE = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "no_proxy")


@pytest.fixture(scope="module")
def emulator() -> Iterator[StoreServer]:
    with store_server("gs") as server:
        yield server


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("gs") / "set"
    return make_data_set(folder, {"train": 24, "validation": 6}, size_px=((16, 16),))


@pytest.fixture(scope="module")
def data(emulator: StoreServer, local: pathlib.Path) -> str:
    with emulator.environment():
        folder = emulator.bucket("photos") + "/sets/one"
        storage.copy_folder(str(local), folder)
        storage.write(folder + "/transform/transform_fn/assets/vocabulary", "one\n")
    return folder


@pytest.fixture
def front(
    emulator: StoreServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GoogleFront]:
    with GoogleFront(emulator.port, tmp_path) as running:
        for name in OF_THE_MACHINE:
            monkeypatch.delenv(name, raising=False)
        settings = {"CLOUDSDK_CONFIG": str(tmp_path / "none"), "NO_GCE_CHECK": "true"}
        for name, value in {**running.environ, **settings}.items():
            monkeypatch.setenv(name, value)
        storage.forget_clients()
        yield running
        storage.forget_clients()


@pytest.mark.long
@pytest.mark.slow
def test_a_model_trained_from_a_real_bucket_is_that_of_the_local_data_set(
    front: GoogleFront, local: pathlib.Path, data: str, tmp_path: pathlib.Path
) -> None:
    common = ["--model", "tests.support.tiny_models:plain", "--epochs", "1", "--batch_size", "8"]
    here, there = tmp_path / "here", tmp_path / "there"
    assert main([*common, "--data", str(local), "--output", str(here)]) == 0
    # Of a Keras that others ask for, the trainer takes no notice.
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    done = run_module("trainer", *common, "--data", data, "--output", there, **legacy)
    assert done.returncode == 0, done.stderr
    assert (here / "weights.sha256").read_text() == (there / "weights.sha256").read_text()
    assert (there / "transform_fn/assets/vocabulary").read_text() == "one\n"
    # Read in place, a few MiB at a time: sixteen shards are open at once.
    assert not (there / "cache").exists()
    # What is not asked by TensorFlow, which knows objects as /bucket/name, is for the report.
    by_tensorflow = [asked for asked in front.read if not asked[1].startswith("/download/")]
    spans = {span for _, path, span in by_tensorflow if "tfrecord" in path and span}
    assert spans == {f"bytes=0-{8 * 2**20 - 1}"}


def test_a_refused_bucket_is_one_sentence(front: GoogleFront, data: str) -> None:
    front.refusing = True
    begun = time.monotonic()
    done = run_module("trainer", "--data", data)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "access is refused (403) to nobody (no credentials were found); run `gcloud" in (
        done.stderr
    )
    assert time.monotonic() - begun < 60


def test_a_bucket_is_checked_once_and_need_not_be_listable(front: GoogleFront, data: str) -> None:
    check_readable(data, "--data")
    assert [host for host, _, _ in front.read] == ["storage.googleapis.com"]
    front.refusing = True
    check_readable(data, "--data")


def test_an_unreachable_store_fails_within_seconds(
    front: GoogleFront, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs, "HASTY_SEC", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match=r"cannot be reached \(.*\); fix the network"):
            check_readable(data, "--data")
    with pytest.raises(UserError, match=r"cannot be reached \(.*\); fix the network"):
        check_readable(data, "--data")


def test_a_key_file_that_is_gone_is_one_sentence(
    front: GoogleFront, data: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "gone.json"))
    with pytest.raises(UserError, match=r"^--data gs:// .*GOOGLE_APP.* is '.*gone.json', where"):
        check_readable(data, "--data")


def test_without_credentials_tensorflow_is_kept_from_looking_for_any(
    front: GoogleFront, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_GCE_CHECK")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")  # where nobody is
    check_readable(data, "--data")
    assert os.environ["NO_GCE_CHECK"] == "true"
    assert os.environ["GCS_READ_CACHE_BLOCK_SIZE_MB"] == "8"


def test_shards_are_copied_where_tensorflow_cannot_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert not needs_copy("gs://b/x") and needs_copy("s3://b/x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost:1")
    assert needs_copy("gs://b/x")
    assert not any(map(needs_copy, ("/b/x", "s3x://b/x")))
