import concurrent.futures
import errno
import multiprocessing
import os
import pathlib
import pickle
import socket
import sys
import time
from typing import Any
from unittest import mock

import boto3
import pytest
from google.cloud.storage import _http

from imageshards import storage
from imageshards.errors import StorageError
from imageshards.storage import direct, objects
from tests.support.errors import refused
from tests.support.store_servers import StoreServer, store_server

pytestmark = pytest.mark.process

STORES = ("gs", "s3")


@pytest.fixture(params=("local", *STORES), scope="module")
def folder(request, tmp_path_factory):
    """A folder of each kind of storage, on stores beside other things."""
    if request.param == "local":
        yield str(tmp_path_factory.mktemp("storage"))
        return
    with store_server(request.param) as running, running.environment():
        bucket = running.bucket()
        storage.write(f"{bucket}/photos-other/x", b"not below")
        yield f"{bucket}/photos"


@pytest.fixture
def place(folder, request):
    return storage.join(folder, request.node.originalname)


@pytest.fixture
def new_clients():
    """Of this test's own settings, and not of the next one's."""
    storage.forget_clients()
    yield
    storage.forget_clients()


def _names(found):
    return [storage.name_of(f.path) for f in found]


def test_written_bytes_round_trip(place):
    contents: dict[str, Any] = {"a b+ü%.jpg": b"\x00\xff" * 5000, "empty": b"", "text": "ä"}
    for name, data in contents.items():
        path = storage.join(place, "deep", name)
        written = storage.write(path, data)
        raw = data.encode() if isinstance(data, str) else data
        assert storage.read(path) == raw
        assert storage.read(path) == raw  # the second read of a bucket goes another way
        assert storage.read(path, max_bytes=3) == raw[:3]
        found = storage.stat(path)
        # The second of a store's answer and that of the object may differ.
        assert found and found == written._replace(mtime_ns=found.mtime_ns)
        assert abs(found.mtime_ns - written.mtime_ns) <= 1e9
        assert written[:2] == (path, len(raw))
        assert abs(written.mtime_ns - time.time_ns()) < 60e9
        storage.write(path, b"0123456789")
        assert storage.read(path) == b"0123456789"
        spans = {(3, 7): b"3456", (8, 100): b"89", (10, 100): b""}
        assert {span: storage.read_range(path, *span) for span in spans} == spans


def test_a_file_is_written_piece_by_piece_and_appears_whole(place):
    path = storage.join(place, "deep", "file")
    with storage.open_write(path) as file:
        file.write(b"abc")
        assert not storage.exists(path)
        file.seek(1)
        file.write(b"B")
    with pytest.raises(InterruptedError), storage.open_write(path) as file:
        file.write(b"unfinished")
        raise InterruptedError
    assert storage.read(path) == b"aBc"
    assert [found.path for found in storage.files_below(place)] == [path]


def test_an_atomic_file_is_there_when_it_is_committed_and_not_before(place):
    path = storage.join(place, "deep", "shard")
    for data in (b"", os.urandom((8 << 20) + 5)):  # gs:// takes more than 8 MiB in two requests
        with pytest.raises(KeyError), storage.AtomicFile(path) as file:
            pathlib.Path(file.local_path).write_bytes(data)
            raise KeyError
        assert not os.path.exists(file.local_path)
        assert list(storage.files_below(place)) == []
        with storage.AtomicFile(path) as file:
            pathlib.Path(file.local_path).write_bytes(data)
            assert storage.stat(path) is None
            version = file.commit()
            assert (found := storage.stat(path)) and version in ("", found.version)
        assert not os.path.exists(file.local_path)
        assert storage.read(path) == data
        storage.delete([path])


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_large_file_is_uploaded_in_parts(server, tmp_path, monkeypatch):
    monkeypatch.setattr("imageshards.storage.s3._MAX_PUT_BYTES", 8 << 20)
    path, data = f"{server.bucket()}/model", os.urandom((8 << 20) + 5)
    (tmp_path / "model").write_bytes(data)
    storage.copy(str(tmp_path / "model"), path)
    assert storage.read(path) == data
    assert any("partNumber=2" in asked.target for asked in server.requests())


def test_a_local_copy_follows_changes_of_its_source(place):
    path = storage.join(place, "model.keras")
    for data in (b"first", b"second"):
        storage.write(path, data)
        copies = [storage.local_copy(path) for _ in range(2)]
        assert copies[0] == copies[1] and pathlib.Path(copies[0]).read_bytes() == data
        assert storage.name_of(copies[0]) == "model.keras"
    storage.write(storage.join(place, "a", "b"), b"below")
    assert (pathlib.Path(storage.local_copy(place)) / "a" / "b").read_bytes() == b"below"
    storage.write(storage.join(place, "a", "b"), b"changed")
    assert (pathlib.Path(storage.local_copy(place)) / "a" / "b").read_bytes() == b"changed"
    with pytest.raises(FileNotFoundError):
        pathlib.Path(storage.local_copy(path + "2")).read_bytes()


def test_reading_a_missing_object_raises_file_not_found(place):
    path = storage.join(place, "missing")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            storage.read(path)
    with pytest.raises(FileNotFoundError):
        storage.open_read(path)
    assert storage.stat(path) is None
    assert not storage.exists(path) and not storage.exists(place)
    assert storage.list_folder(place) == [*storage.files_below(place)] == []
    storage.delete([path, path + "2"])
    storage.delete_folder(place)


def test_a_listing_is_sorted_and_has_one_level(place):
    for name in ("a/x", "a-b", "a.c/y", "b", "a/z/w"):
        storage.write(storage.join(place, name), name)
    entries = storage.list_folder(place + "/")
    sizes = {"a": 0, "a-b": 3, "a.c": 0, "b": 1}
    assert [(e.name, e.size_bytes) for e in entries] == list(sizes.items())
    assert [e.name for e in entries if e.is_folder] == ["a", "a.c"]
    assert [e.path for e in entries] == [storage.join(place, e.name) for e in entries]
    below = [f.path.removeprefix(place + "/") for f in storage.files_below(place)]
    assert below == ["a-b", "a.c/y", "a/x", "a/z/w", "b"]
    assert not storage.exists(storage.join(place, "a"))
    assert storage.is_folder(place) and storage.is_folder(storage.join(place, "a") + "/")
    assert not any(storage.is_folder(storage.join(place, name)) for name in ("b", "a/z/v", "no"))
    for pattern, expected in {
        "*": ["a-b", "b"],  # files, and no slash is crossed
        "a/?": ["a/x"],
        "*/[w-z]": ["a.c/y", "a/x"],
        "*/z/*": ["a/z/w"],
        "*.none": [],
    }.items():
        found = storage.glob(storage.join(place, pattern))
        assert found == [storage.join(place, name) for name in expected]


def test_uploads_copies_and_ranges_keep_every_byte(place, tmp_path):
    data = os.urandom(9 << 20)  # more than one range, and above what GCS takes in one request
    (tmp_path / "up").write_bytes(data)
    path = storage.join(place, "large")
    storage.copy(str(tmp_path / "up"), path)
    assert (found := storage.stat(path)) and found.size_bytes == len(data)
    storage.copy(path, str(tmp_path / "new" / "down"))
    assert (tmp_path / "new" / "down").read_bytes() == data
    assert os.listdir(tmp_path / "new") == ["down"]
    with storage.open_read(path) as file:
        assert file.read(10) == data[:10]
        file.seek(-7, os.SEEK_END)
        assert file.read() == data[-7:]
        file.seek(5 << 20)
        assert file.read(100) == data[5 << 20 : file.tell()] and file.tell() == (5 << 20) + 100


@pytest.mark.parametrize("function", [storage.read, storage.files_below, storage.write])
def test_functions_can_be_sent_to_other_processes(function):
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_replaced_file_is_not_mixed_with_the_file_that_was_listed(place, tmp_path):
    path, data = storage.join(place, "archive"), bytes(20 << 20)
    listed = storage.write(path, data)
    assert storage.read_range(path, 3, 5, listed.version) == bytes(2)
    opened = storage.open_read(path, listed.version)
    opened.read(10)
    replaced = storage.write(path, data[:-1] + b"x")
    if not storage.is_local(path):  # a file of this machine stays whole while it is open
        with pytest.raises(OSError, match="replaced"):
            opened.seek(10 << 20), opened.read(10)
    opened.close()
    for read in (
        lambda: storage.read_range(path, 3, 5, listed.version),
        lambda: storage.open_read(path, listed.version),
    ):
        with pytest.raises(OSError, match="replaced") as error:
            read()
        assert error.value.errno == errno.ESTALE
    with storage.open_read(path, replaced.version) as file:
        assert file.read()[-1:] == b"x"


def test_copies_moves_and_deletes(place, tmp_path):
    first, second = (storage.join(place, name) for name in ("one", "two words"))
    storage.write(first, b"1")
    storage.copy(first, second)
    storage.move(first, storage.join(place, "below", "three"))
    (tmp_path / "here").write_bytes(b"1")
    storage.copy_folder(str(tmp_path), storage.join(place, "up"))
    storage.copy_folder(storage.join(place, "up"), storage.join(place, "down", "it"))
    assert _names(storage.files_below(place)) == ["three", "here", "two words", "here"]
    storage.delete([second, storage.join(place, "up", "here"), storage.join(place, "never")])
    storage.delete_folder(storage.join(place, "down"))
    assert _names(storage.files_below(place)) == ["three"]


# Locks of this machine are the kernel's.
@pytest.mark.parametrize("folder", STORES, indirect=True)
def test_compare_and_swap(folder, place):
    path = storage.join(place, "lease")
    store: Any = storage.backend(path)
    assert store.described(path) is None
    assert store.write_if(path, b"0", "123") is None  # not there
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: store.write_if(path, b"%d" % n, None), range(4)))
    ((winner, first),) = [(n, version) for n, version in enumerate(made) if version is not None]
    assert storage.read(path) == b"%d" % winner
    second = store.write_if(path, b"second", first)  # a store may make versions of the content
    found, now_sec = store.described(path)
    assert found.version == second and -1 < now_sec - found.mtime_ns / 1e9 < 60
    assert store.write_if(path, b"third", first) is None
    assert storage.read(path) == b"second"


@pytest.mark.parametrize("has_links", [True, False])
def test_one_of_several_writers_of_a_new_file_writes_it_whole(place, has_links, monkeypatch):
    if not has_links:
        monkeypatch.setattr(os, "link", mock.Mock(side_effect=PermissionError(errno.EPERM, "none")))
    path = storage.join(place, "deep", f"new-{has_links}", "x")
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: storage.write_new(path, b"%d" % n * 9999), range(4)))
    assert made.count(True) == 1
    assert storage.read(path) == b"%d" % made.index(True) * 9999
    assert _names(storage.files_below(storage.parent_of(path))) == ["x"]


def test_a_new_file_exists_if_only_the_answer_was_lost(server):
    path = server.bucket() + "/new"
    server.fail("drop_answer", times=1)
    assert not storage.write_new(path, b"1")  # it was sent again
    assert storage.read(path) == b"1"


def test_a_listing_joins_its_pages(server, monkeypatch):
    place = server.bucket() + "/many"
    monkeypatch.setattr(type(storage.backend(place)), "page_objects", 7)
    names = [f"{n:05d}" for n in range(20)]
    for name in names:
        storage.write(f"{place}/{name}", b"")
    server.clear()
    assert _names(storage.list_folder(place)) == names
    assert _names(storage.files_below(place)) == names
    assert len(server.requests()) == 6
    storage.delete_folder(place)
    assert list(storage.files_below(place)) == []


def test_a_store_that_ignores_ranges_is_not_read_without_limit(server):
    path = server.bucket() + "/x"
    storage.write(path, bytes(100_000))
    server.fail("no_range", method="GET")
    with pytest.raises(OSError, match="more than the 10 bytes that were asked for"):
        storage.read_range(path, 5, 15)
    assert storage.read_range(path, 99_995, 100_015) == bytes(5)


@pytest.mark.parametrize("kind", [503, "reset"])
def test_temporary_errors_are_retried_and_counted(server, kind, tmp_path):
    path = server.bucket() + "/x"
    (tmp_path / "up").write_bytes(b"data")
    storage.write(path, b"data")
    storage.read(path)
    for ask in (
        lambda: storage.read(path),
        lambda: storage.write(path, b"data"),
        lambda: storage.copy(str(tmp_path / "up"), path),
        lambda: storage.stat(path),
        lambda: list(storage.files_below(storage.parent_of(path))),
    ):
        server.fail(kind, times=1)
        before = storage.counts().retries
        ask()
        assert storage.counts().retries == before + 1
    assert storage.read(path) == b"data"


@pytest.mark.usefixtures("new_clients")
@pytest.mark.parametrize(("kind", "times", "reads_before"), [("short", 2, 0), ("hang", 1, 1)])
def test_an_answer_that_does_not_end_is_requested_again(
    server, monkeypatch, kind, times, reads_before
):
    """boto3 tries again until an answer begins, not until it ends."""
    monkeypatch.setattr(direct, "_TIMEOUT_SEC", 0.3)
    path, body = f"{server.bucket()}/{kind}", b"0123456789" * 300_000
    storage.write(path, body)
    for _ in range(reads_before):  # later reads of a bucket go another way
        storage.read(path)
    server.fail(kind, times=times, matching=kind, method="GET")
    before = storage.counts().retries
    assert storage.read(path) == body
    assert storage.counts().retries == before + times


def test_requests_are_counted(server, monkeypatch):
    monkeypatch.setattr(objects, "_TRUST_SEC", 3600)
    path = server.bucket() + "/x"
    storage.write(path, b"data")
    storage.read(path)
    server.clear()
    storage.unreported()
    for _ in range(3):
        storage.read(path)
    storage.write(path, b"12345")
    storage.stat(path)
    counted = storage.unreported()
    assert counted.requests in (5, 6) and len(server.requests()) == 5
    assert (counted.bytes_read, counted.bytes_written) == (12, 5)
    assert storage.unreported() == storage.Counts()
    for requests in (2, 1):  # first it may be the bucket that is missing
        server.clear()
        with pytest.raises(FileNotFoundError):
            storage.read(path + " missing")
        assert len(server.requests()) == requests


@pytest.mark.parametrize(("step", "requests", "times"), [(600, 5, 2), (200_000, 250, 1)])
def test_headers_in_an_object_are_read_by_few_ranges(server, step, requests, times):
    """Neighbours are read through by ranges that grow, and data between headers are passed over."""
    path = f"{server.bucket()}/archive.tar"
    storage.write(path, bytes(200 * step))
    server.clear()
    storage.unreported()
    with storage.open_read(path) as file:
        for number in range(200):
            file.seek(number * step)
            assert len(file.read(512)) == 512
    assert len(server.requests()) <= requests + 1
    assert storage.unreported().bytes_read <= times * 200 * step


def test_a_missing_bucket_is_reported_in_one_sentence(server):
    where = f"{server.scheme}://no-such-bucket/photos"
    with pytest.raises(StorageError, match="--input .* names a bucket that does not exist; fix"):
        storage.check_bucket(where, "--input")
    for ask in (storage.read, storage.list_folder, lambda p: storage.write(p, b"")):
        with pytest.raises(StorageError, match="names a bucket that does not exist"):
            ask(f"{where}/x")
    with pytest.raises(StorageError, match="names no bucket"):
        storage.check_bucket(f"{server.scheme}://", "--output")
    storage.check_bucket(server.bucket() + "/not/there/yet", "--output")


@pytest.mark.usefixtures("new_clients")
def test_a_refused_object_is_no_refused_bucket(server, monkeypatch):
    bucket = server.bucket()
    storage.write(f"{bucket}/x", b"1")
    storage.read(f"{bucket}/x")
    server.fail(403, times=20, matching="secret")
    with pytest.raises(PermissionError):
        storage.read(f"{bucket}/secret")
    server.fail(403, times=10**6)  # the bucket is closed, and had answered just now
    with pytest.raises(PermissionError):
        storage.read(f"{bucket}/x")
    monkeypatch.setattr(objects, "_TRUST_SEC", 0.0)
    with pytest.raises(StorageError, match=rf"{bucket} .*refused \(403\)"):
        storage.read(f"{bucket}/x")
    who = r"--output .* refused \(403\) to (the access key|nobody)"
    with pytest.raises(StorageError, match=who):
        storage.check_bucket(bucket, "--output")
    storage.check_bucket(bucket, "--data", must_list=False)  # its objects may be readable
    server.heal()


@pytest.mark.usefixtures("new_clients")
@pytest.mark.parametrize("scheme", STORES)
def test_an_endpoint_that_is_down_is_reported_within_seconds(scheme, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name, value in StoreServer(scheme, closed.getsockname()[1]).environ.items():
            monkeypatch.setenv(name, value)
        storage.forget_clients()
        begun = time.monotonic()
        with pytest.raises(StorageError, match="cannot be reached"):
            storage.check_bucket(f"{scheme}://photos", "--input")
        assert time.monotonic() - begun < 15


def _without_credentials(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "STORAGE_", "GCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("new_clients")
@pytest.mark.parametrize("server", ["gs"], indirect=True)
def test_missing_credentials_are_reported_without_waiting(monkeypatch, tmp_path, server):
    _without_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    # An emulator's variable would say that no credentials are needed.
    monkeypatch.setattr(_http.Connection, "DEFAULT_API_ENDPOINT", server.url)
    bucket = server.bucket()
    storage.forget_clients()
    server.fail(403, times=5, matching=bucket.partition("://")[2])
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"nobody \(no credentials were found\); run `"):
        storage.check_bucket(bucket, "--input")
    assert time.monotonic() - begun < 15
    server.heal()


def _read_in_child(path):
    return storage.read(path), storage.counts().requests


def test_a_forked_process_makes_a_new_client(server):
    path = server.bucket() + "/x"
    storage.write(path, b"data")
    storage.read(path)
    mine = storage.backend(path)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_read_in_child, [path]) == (b"data", 1)
    assert storage.backend(path) is mine


@pytest.mark.usefixtures("new_clients")
def test_a_missing_extra_is_reported_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "imageshards.storage.s3", raising=False)
    storage.forget_clients()
    with pytest.raises(StorageError, match=r"pip install 'imageshards\[aws\]'"):
        storage.check_bucket("s3://photos", "--input")


@pytest.mark.usefixtures("new_clients")
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_without_credentials_only_public_objects_are_read(server, monkeypatch, tmp_path):
    bucket = server.bucket()
    for name in ("public", "private"):
        storage.write(f"{bucket}/{name}", b"x")
    there = {"Bucket": bucket.removeprefix("s3://"), "Key": "public"}
    boto3.client("s3").put_object_acl(ACL="public-read", **there)
    _without_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    storage.forget_clients()
    assert storage.read(f"{bucket}/public") == b"x"
    # moto lets nobody list the bucket either, so that it is the bucket's refusal.
    with pytest.raises((StorageError, PermissionError), match=r"\(403\) to nobody .*`aws conf"):
        storage.read(f"{bucket}/private")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    storage.forget_clients()
    with pytest.raises(StorageError, match=r"settings of boto3 \(.*nobody.*\); fix AWS_PROFILE"):
        storage.read(f"{bucket}/public")


def test_an_unknown_scheme_is_reported_in_one_sentence():
    with refused("input", "'nostore://b'", kind=StorageError):
        storage.check_bucket("nostore://b", "input")
    with pytest.raises(OSError, match="no file system"):
        storage.read("nostore://b/x")


def test_half_a_copy_is_not_used(server):
    place = server.bucket() + "/half"
    names = ["1.bin", "2.bin", "3.bin"]
    for name in names:
        storage.write(f"{place}/{name}", name.encode())
    storage.read(f"{place}/1.bin")
    server.fail(403, times=10**6, matching="2.bin")
    with pytest.raises(OSError, match="403"):
        storage.local_copy(place)
    server.heal()
    assert sorted(os.listdir(storage.local_copy(place))) == names


def test_a_local_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "sub" / "x"
    storage.write(str(path), b"old")
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        storage.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["x"]
