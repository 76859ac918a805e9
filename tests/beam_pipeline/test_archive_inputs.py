"""Whole builds from archives, WebDataset and Parquet: the records of the folder that they hold."""

import gzip
import io
import json
import os
import pathlib
import signal
import tarfile
import zipfile
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from pyarrow import parquet

from imageshards import storage
from tests.support.builds import build, build_set, class_folders, records_of, shard_bytes
from tests.support.commands import ForkedBuild, build_killed_at, wait_until
from tests.support.portable_servers import run_here, running
from tests.support.store_servers import store_server

pytestmark = pytest.mark.process

FLAGS = ["--image_size", "32", "--num_shards", "train=3,validation=1", "--no_report"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    root = class_folders(tmp_path_factory.mktemp("photos") / "photos", {"cat": 12, "dog": 15}, 1)
    (root / "notes.txt").write_text("no picture")
    return root


@pytest.fixture(scope="module")
def photos(folder) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory) -> dict[str, bytes]:
    return shard_bytes(build_set(folder, tmp_path_factory.mktemp("expected") / "out", *FLAGS))


def tar_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def zip_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def tar_of_tars(files: Mapping[str, bytes]) -> bytes:
    inside: dict[str, dict[str, bytes]] = {"cat": {}, "dog": {}}
    for name, data in images_of(files).items():
        folder, _, rest = name.partition("/")
        inside[folder][rest] = data
    return tar_of({f"{folder}.tar": tar_of(inside[folder]) for folder in inside})


def images_of(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".jpg")}


def parquet_of(files: Mapping[str, bytes]) -> bytes:
    """A table of pictures as Hugging Face writes it."""
    images, names = images_of(files), ["cat", "dog"]
    pictures = pa.array([{"bytes": data, "path": name} for name, data in images.items()])
    ids = pa.array([names.index(name.split("/")[0]) for name in images], pa.int64())
    rows = pa.table({"image": pictures, "label": ids})
    features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    said = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    packed = io.BytesIO()
    parquet.write_table(rows.replace_schema_metadata(said), packed, row_group_size=5)
    return packed.getvalue()


def webdataset(files: Mapping[str, bytes]) -> bytes:
    """Samples whose class is an id, `cls`, and a text of a JSON file."""
    samples: dict[str, bytes] = {}
    for name, data in images_of(files).items():
        stem, folder = name.removesuffix(".jpg"), name.split("/")[0]
        samples[name] = data
        samples[f"{stem}.json"] = json.dumps({"folder": folder, "size": len(data)}).encode()
        samples[f"{stem}.cls"] = str(["cat", "dog"].index(folder)).encode()
    return tar_of(samples)


PACKED: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "photos.tar": tar_of,
    "photos.zip": zip_of,
    "tars.tar": tar_of_tars,
    "photos.tgz": lambda files: gzip.compress(tar_of(files)),
    "data.parquet": parquet_of,
    "ids/00000.tar": webdataset,
    "json/00000.tar": webdataset,
}
LABELS = {"ids": ["--class_names", "cat,dog"], "json": ["--label_column", "folder"]}


def pack(name: str, photos: Mapping[str, bytes], folder: pathlib.Path) -> list[str | pathlib.Path]:
    """Packs photos into a file of a name; returns the flags to build from it."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(PACKED[name](photos))
    labels = [*LABELS[path.parent.name], "--columns", ""] if "/" in name else []
    return ["--input", path, *labels, *FLAGS]


# A spooled form, a table, and the form that `make test-long` leaves out.
@pytest.mark.parametrize("name", ["photos.tgz", "data.parquet", "json/00000.tar"])
@pytest.mark.one_row
def test_an_archive_gives_the_shards_of_its_folder(photos, expected, tmp_path, name):
    assert build(*pack(name, photos, tmp_path), "--output", tmp_path / "out") == 0
    assert shard_bytes(tmp_path / "out") == expected
    assert not (tmp_path / "out" / ".staging").exists()


@pytest.mark.long
def test_several_webdataset_archives_with_columns(photos, tmp_path):
    (tmp_path / "set").mkdir()
    for number, folder in enumerate(("cat", "dog")):
        some = {name: data for name, data in photos.items() if name.startswith(folder)}
        (tmp_path / "set" / f"0000{number}.tar").write_bytes(webdataset(some))
    flags = ["--class_names", "cat,dog", "--columns", "size:int", *FLAGS]
    for given, output in ((tmp_path / "set", "a"), (f"{tmp_path}/set/{{00000..00001}}.tar", "b")):
        build_set(given, tmp_path / output, *flags)
    assert shard_bytes(tmp_path / "a") == shard_bytes(tmp_path / "b")
    records = records_of(tmp_path / "a")
    assert len(records) == 27
    for key, features in records.items():
        assert key.startswith(("00000/cat/", "00001/dog/"))
        assert features["size"] == [len(photos[key.partition("/")[2]])]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_signal_does_not_wait_for_an_archive_to_be_unpacked(photos, tmp_path, number):
    huge = tarfile.TarInfo("huge.bin")
    huge.size = 16 << 30
    zeros = gzip.compress(bytes(16 << 20)) * 1024
    header = gzip.compress(huge.tobuf(tarfile.GNU_FORMAT))
    (tmp_path / "in.tgz").write_bytes(header + zeros + gzip.compress(tar_of(photos)))
    output = tmp_path / "out"
    flags = ["--layout", "class_folders", "--output", output, *FLAGS]
    process = ForkedBuild("--input", tmp_path / "in.tgz", *flags)
    wait_until(lambda: [*output.glob(".staging/spool/*")], process)
    os.kill(process.pid, number)
    said, _ = process.communicate()
    assert process.returncode == 130 and "Traceback" not in said, said
    # A whole file would be kept. The next build removes what a thread had no time to remove.
    assert all(".tmp-" in path.name for path in output.glob(".staging/spool/*"))


FORMS = PACKED.keys() - {"json/00000.tar"}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMS))
def test_from_a_store_whatever_is_killed(photos, expected, tmp_path, form):
    _, path, *flags = map(str, pack(form, photos, tmp_path))
    with store_server("s3") as running, running.environment():
        uri = f"{running.bucket()}/in/{form}"
        storage.copy(path, uri)
        output = tmp_path / "out"
        command = ["--input", uri, "--output", str(output), *flags]
        kill = ("beam_pipeline.planning.transforms", "make_unit", 2)
        build_killed_at(*kill, "--direct_num_workers", "2", *command)
        spooled = {path: path.stat().st_mtime_ns for path in output.glob(".staging/spool/*")}
        assert bool(spooled) == form.endswith((".tgz", ".parquet"))
        late = ("beam_pipeline.commit.transforms", "finalize_shard", 2)
        build_killed_at(*late, "--direct_num_workers", "2", *command)
        # What was spooled is not spooled again.
        assert spooled == {path: path.stat().st_mtime_ns for path in spooled}
        assert build(*command) == 0
    assert shard_bytes(output) == expected
    assert not (output / ".staging").exists()


@pytest.mark.long
@pytest.mark.slow
def test_through_a_job_service(photos, expected, tmp_path):
    """Prism's workers list, spool and read all forms."""
    with running(tmp_path) as servers:
        for number, form in enumerate(FORMS):
            output = tmp_path / f"out-{number}"
            command = [*pack(form, photos, tmp_path), "--output", output, *servers.flags]
            code, said = run_here(*map(str, command))
            assert code == 0, said
            assert shard_bytes(output) == expected, form
