"""Originals are read in order, ahead of time, or there is a reason why not."""

import os
from unittest.mock import Mock

import pytest

from beam_pipeline.images import read as read_module
from beam_pipeline.images.read import read_images
from beam_pipeline.planning.refs import ImageRef
from imageshards.errors import ImageError
from tests.support.stores import store_uri


def ref(path, size_bytes=-1):
    return ImageRef(os.path.basename(str(path)), str(path), "a", size_bytes=size_bytes)


def read(*refs: ImageRef, max_bytes: int = 1000) -> list[bytes | str]:
    """Bytes or reason codes, in order."""
    found = list(read_images(refs, max_bytes))
    assert [r for r, _ in found] == list(refs)
    return [data.code if isinstance(data, ImageError) else data for _, data in found]


@pytest.mark.parametrize("count", [0, 1, read_module.LOCAL_DEPTH, 3 * read_module.REMOTE_DEPTH])
@pytest.mark.parametrize("size_bytes", [-1, 3])
@pytest.mark.parametrize("remote", [False, True])
def test_every_file_comes_in_order(tmp_path, count, size_bytes, remote):
    for i in range(count):
        (tmp_path / f"{i}.jpg").write_bytes(b"%03d" % i)
    where = store_uri if remote else str
    refs = [ref(where(tmp_path / f"{i}.jpg"), size_bytes) for i in range(count)]
    assert read(*refs) == [b"%03d" % i for i in range(count)]


@pytest.mark.parametrize(
    ("uri", "size_bytes", "groups"),
    [
        (str, 10_000, [16, 16, 8]),
        (str, 300_000, [3] * 13 + [1]),
        (str, 3_000_000, [1] * 40),
        (str, -1, [1] * 40),
        (str, 0, [1] * 40),  # the file may have grown
        (store_uri, 10_000, [1] * 40),
    ],
)
def test_a_thread_reads_small_local_files_in_groups(tmp_path, monkeypatch, uri, size_bytes, groups):
    fetched = Mock(wraps=read_module._fetch_group)
    monkeypatch.setattr(read_module, "_fetch_group", fetched)
    refs = [ref(uri(tmp_path / f"{i}.jpg"), size_bytes) for i in range(40)]
    assert read(*refs, max_bytes=10**7) == ["not_found"] * 40
    sizes = [len(call.args[0]) for call in fetched.call_args_list]
    assert sorted(sizes, reverse=True) == groups


@pytest.mark.parametrize("remote", [False, True])
def test_an_unreadable_file_has_the_code_of_its_reason(tmp_path, remote):
    (tmp_path / "directory.jpg").mkdir()
    (tmp_path / "broken.jpg").symlink_to("nowhere")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"y")
    os.mkfifo(tmp_path / "fifo.jpg")
    names = {
        "none.jpg": "not_found", "broken.jpg": "not_found", "self.jpg": "not_found",
        "file/x.jpg": "not_found", "directory.jpg": "not_a_file", "fifo.jpg": "not_a_file",
        "a\0b": "read_error", "\ud800": "read_error", "x" * 300: "read_error", "empty.jpg": b"",
        os.fsdecode(b"\xff.jpg"): b"y", "/dev/zero": "not_a_file",  # opened, neither would end
    }  # fmt: skip
    refs = [ref(tmp_path / name) for name in names]
    if remote:  # one file of a store among them changes how all are read
        (tmp_path / "good.jpg").write_bytes(b"good")
        refs += [ref(store_uri(tmp_path / "good.jpg")), ref("nostore://bucket/x.jpg")]
        names |= {"good.jpg": b"good", "x.jpg": "read_error"}
    assert read(*refs) == list(names.values())


def test_a_file_without_read_permission_has_its_own_reason(tmp_path, nobody_closes):
    (tmp_path / "closed.jpg").write_bytes(b"x")
    nobody_closes("closed.jpg")
    for uri in (str, store_uri):
        assert read(ref(uri(tmp_path / "closed.jpg"))) == ["permission_denied"]


@pytest.mark.parametrize("uri", [str, store_uri])
def test_a_file_above_the_limit_is_not_read(tmp_path, uri):
    (tmp_path / "a.jpg").write_bytes(b"x" * 101)
    (tmp_path / "b.jpg").write_bytes(b"x" * 100)
    refs = [ref(uri(tmp_path / "a.jpg")), ref(uri(tmp_path / "b.jpg"))]
    assert read(*refs, max_bytes=100) == ["too_many_bytes", b"x" * 100]
    (_, error), _ = read_images(refs, 100)
    assert str(error) == "too_many_bytes: 101 bytes; the limit is 100"
    listed = ref(store_uri(tmp_path / "none"), size_bytes=101)  # it is not even opened
    assert read(listed, max_bytes=100) == ["too_many_bytes"]
