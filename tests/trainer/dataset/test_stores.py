"""The trainer's own clients of stores: names, ranges, retries, and a sentence per mistake."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from imageshards import storage
from imageshards.errors import UserError
from imageshards.tfrecord import read_records, write_records
from tests.support.store_servers import StoreServer, store_server
from trainer.dataset import remote, stores

BODY = b"0123456789" * 300_000


@contextlib.contextmanager
def _used(server: StoreServer) -> Iterator[StoreServer]:
    with server.environment():
        stores.forget_clients()
        yield server
    stores.forget_clients()


@pytest.fixture(scope="module", params=["s3", "gs"])
def running(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with store_server(request.param) as server:
        yield server


@pytest.fixture
def store(running: StoreServer) -> Iterator[StoreServer]:
    with _used(running):
        yield running
        running.heal()


@pytest.fixture
def folder(store: StoreServer) -> str:
    """`a` with a file and a folder, and an empty file beside them."""
    bucket = store.bucket()
    storage.write(f"{bucket}/set/a/x.tfrec", BODY)
    storage.write(f"{bucket}/set/a/b/y.tfrec", b"y")
    storage.write(f"{bucket}/set/empty", b"")
    return f"{bucket}/set"


def test_folders_are_what_names_make_them(folder: str) -> None:
    assert remote.is_folder(folder) and remote.is_folder(folder + "/a/")
    assert not remote.is_folder(folder + "/a/x") and not remote.is_folder(folder + "/none")
    assert remote.list_folder(folder) == (["a"], ["empty"])
    assert remote.list_folder(folder + "/a") == (["b"], ["x.tfrec"])
    below = ["a/b/y.tfrec", "a/x.tfrec", "empty"]
    assert remote.files_below(folder) == [f"{folder}/{name}" for name in below]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["empty"]),
        ("a/?.tfrec", ["a/x.tfrec"]),
        ("*/*.tfrec", ["a/x.tfrec"]),
        ("*/[a-c]/*", ["a/b/y.tfrec"]),
        ("*.none", []),
    ],
)
def test_globs_find_files_and_do_not_cross_slashes(
    folder: str, pattern: str, expected: list[str]
) -> None:
    assert remote.matches(f"{folder}/{pattern}") == [f"{folder}/{name}" for name in expected]


def test_objects_are_read_whole_in_parts_and_from_any_place(
    folder: str, tmp_path: pathlib.Path
) -> None:
    assert remote.read(folder + "/a/x.tfrec") == BODY and remote.read(folder + "/empty") == b""
    assert stores.read(folder + "/a/x.tfrec", 3, 7) == b"3456"
    found = remote.stat(folder + "/a/x.tfrec")
    assert found.num_bytes == len(BODY)
    assert abs(found.modified_nsec / 1e9 - time.time()) < 100
    with remote.open_binary(folder + "/a/x.tfrec") as file:
        assert file.read(5) == b"01234" and file.tell() == 5
        assert file.seek(-3, os.SEEK_END) == len(BODY) - 3 and file.read(9) == b"789"
        assert file.seek(0) == 0 and file.read() == BODY and file.read(1) == b""
    path = tmp_path / "copy"
    assert stores.download(folder + "/a/x.tfrec", str(path)) == hashlib.sha256(BODY).hexdigest()
    assert path.read_bytes() == BODY


def test_a_look_at_both_ends_is_no_download(store: StoreServer, folder: str) -> None:
    store.clear()
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "read", _noted(stores.read, read))
        with remote.open_binary(folder + "/a/x.tfrec") as file:
            assert file.read(12) == BODY[:12]
            file.seek(len(BODY) - 16)
            assert file.read(16) == BODY[-16:]
    assert len(store.requests()) <= 5 and sum(read) < len(BODY) / 20


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_records_are_scanned_with_few_requests(
    store: StoreServer, tmp_path: pathlib.Path, compression: str
) -> None:
    payloads = [bytes([i % 256]) * (10 * (i % 97)) for i in range(9000)]
    local = str(tmp_path / "records")
    write_records(local, payloads, compression)
    uri = store.bucket() + "/records"
    storage.upload(local, uri)
    store.clear()
    found = read_records(uri, compression, remote.open_binary)
    assert [record.payload for record in found] == payloads
    assert len(store.requests()) <= 12
    assert compression == "none" or gzip.decompress(remote.read(uri))


def test_what_is_no_object_is_an_os_error(folder: str) -> None:
    for missing in (folder + "/none", folder, folder + "/"):
        with pytest.raises(FileNotFoundError):
            remote.stat(missing)
    with pytest.raises(FileNotFoundError):
        remote.read(folder + "/none")
    with pytest.raises(FileNotFoundError):
        remote.open_binary(folder + "/none")


@pytest.mark.parametrize("kind", [503, 429, "reset"])
def test_passing_trouble_is_waited_for(store: StoreServer, folder: str, kind: int | str) -> None:
    store.fail(kind, times=2, matching="set")
    assert remote.read(folder + "/a/b/y.tfrec") == b"y"


def test_a_bucket_that_is_missing_is_named(store: StoreServer, folder: str) -> None:
    other = f"{store.scheme}://no-such-bucket/set"
    sentence = r"^--data received '.*no-such-bucket/set', whose bucket does not exist; .*\.$"
    with pytest.raises(UserError, match=sentence):
        remote.check(other, "--data")
    with pytest.raises(UserError, match="no-such-bucket does not exist"):
        remote.read(other + "/x")
    with pytest.raises(UserError, match="names no bucket; expected"):
        remote.check(f"{store.scheme}://", "--data")
    remote.check(folder, "--data")


def test_a_refused_bucket_is_told_from_a_refused_object(store: StoreServer, folder: str) -> None:
    store.fail(403, times=100, matching="y.tfrec")
    with pytest.raises(PermissionError, match=r"access is refused \(403\) to "):
        remote.read(folder + "/a/b/y.tfrec")
    store.heal()
    stores.forget_clients()
    store.fail(403, times=100)
    remote.check(folder, "--data")  # it may still be read where it must not be listed
    with pytest.raises(UserError, match=r"cannot be read: access is refused \(403\) to "):
        remote.read(folder + "/a/b/y.tfrec")


def test_nobody_waits_long_where_nothing_answers(store: StoreServer, folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    name = "AWS_ENDPOINT_URL" if store.scheme == "s3" else "STORAGE_EMULATOR_HOST"
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, address)
        stores.forget_clients()
        with pytest.raises(UserError, match=rf"cannot be reached \(.*\); .*{name}.*\.$"):
            remote.check(folder, "--data")
    assert time.monotonic() - begun < 15


def test_a_package_that_is_missing_is_named(
    store: StoreServer, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, extra = {"s3": ("boto3", "aws"), "gs": ("google.cloud.storage", "gcp")}[store.scheme]
    import google.cloud

    monkeypatch.delattr(google.cloud, "storage", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    stores.forget_clients()
    with pytest.raises(UserError, match=rf"not installed; .*pip install 'imageshards\[{extra}\]'"):
        remote.check(folder, "--data")


def test_gs_is_left_to_tensorflow_unless_an_emulator_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert not stores.is_store("gs://b/x") and stores.is_store("s3://b/x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost:1")
    assert stores.is_store("gs://b/x")
    assert not any(map(stores.is_store, ("/b/x", "hdfs://b/x", "s3x://b/x")))


def _noted(read: Callable[..., bytes], sizes: list[int]) -> Callable[..., bytes]:
    def reading(*arguments: Any) -> bytes:
        data = read(*arguments)
        sizes.append(len(data))
        return data

    return reading


def _answer(connection: socket.socket, body: bytes, sent: int) -> None:
    with connection:
        connection.recv(65536)
        head = f"HTTP/1.1 206 Partial\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body[:sent])


def test_an_answer_that_breaks_off_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries try again until an answer begins, not until it ends."""
    server = socket.create_server(("127.0.0.1", 0))
    broken = 2

    def serve() -> None:
        for turn in range(broken + 1):
            _answer(server.accept()[0], BODY, 1000 if turn < broken else len(BODY))

    threading.Thread(target=serve, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }.items():
        monkeypatch.setenv(name, value)
    stores.forget_clients()
    with server:
        assert stores.read("s3://bucket/x") == BODY
    stores.forget_clients()


def test_without_credentials_a_refusal_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_server("s3") as server:
        bucket = _filled(server)
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        stores.forget_clients()
        assert remote.read(bucket + "/public") == b"x"
        with pytest.raises(PermissionError, match="to nobody .*: run aws configure"):
            remote.read(bucket + "/private")
        stores.forget_clients()
        server.fail(403, times=100)
        with pytest.raises(UserError, match=r"\(no credentials were found\); run aws configure"):
            remote.read(bucket + "/public")
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        stores.forget_clients()
        with pytest.raises(UserError, match=r"settings of boto3 \(.*nobody.*\); fix AWS_PROFILE"):
            remote.read(bucket + "/public")
    stores.forget_clients()


def _filled(server: StoreServer) -> str:
    with server.environment():
        bucket = server.bucket()
        for name in ("public", "private"):
            storage.write(f"{bucket}/{name}", b"x")
        there = {"Bucket": bucket.removeprefix("s3://"), "Key": "public"}
        boto3.client("s3").put_object_acl(ACL="public-read", **there)
        return bucket
