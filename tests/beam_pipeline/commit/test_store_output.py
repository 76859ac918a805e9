"""Builds whose output is in a bucket: the same bytes, few requests, and nothing lost on the way."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from beam_pipeline.commit.finalize import finalize_shard, plan_finalize
from beam_pipeline.options import ImageOptions, ShardOptions
from beam_pipeline.planning.refs import ImageRef, ShardUnit
from beam_pipeline.shards.places import JOB_NAME, JobNotes, ShardPlaces
from beam_pipeline.shards.result import ShardResult, read_result
from beam_pipeline.shards.writer import write_shard
from imageshards import storage
from imageshards.errors import LeaseLostError, OutputError
from imageshards.manifest.file import to_json
from imageshards.storage import lease
from imageshards.verification import command as verify
from tests.support.builds import build, class_folders, examples, manifest, shard_bytes
from tests.support.commands import ForkedBuild, wait_until
from tests.support.commit_steps import contents
from tests.support.store_servers import StoreServer, store_server

pytestmark = pytest.mark.slow

# What does not depend on the store is tried with one.
ONLY_S3 = pytest.mark.parametrize("server", ["s3"], indirect=True)
SHARDS = 8
SHARD = re.compile(r"train-\d{5}-of-\d{5}\.tfrecord")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> pathlib.Path:
    return class_folders(tmp_path_factory.mktemp("in") / "photos", {"cat": 40, "dog": 40}, broken=3)


def flags(photos: pathlib.Path, output: object, *more: str) -> list[str]:
    return [
        "--input", str(photos), "--output", str(output), "--image_size", "32",
        "--splits", "train=1", "--num_shards", str(SHARDS), "--max_reject_fraction", "0.1",
        "--direct_num_workers", "2", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def local(photos, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("local") / "set"
    assert build(*flags(photos, output)) == 0
    return output


@pytest.fixture(scope="module", params=["s3", pytest.param("gs", marks=pytest.mark.long)])
def server(request) -> Iterator[StoreServer]:
    with store_server(request.param) as running, running.environment():
        yield running


def unit_of(photos: pathlib.Path) -> ShardUnit:
    paths = sorted(photos.glob("cat/cat*.jpg"))[:20]
    refs = [ImageRef(path.name, str(path), "cat", "train") for path in paths]
    return ShardUnit("train", 0, 1, {"cat": 0}, refs, {})


def places_of(output: str) -> ShardPlaces:
    return ShardPlaces(output=output, staging=f"{output}/.staging")


OPTIONS = ShardOptions(image=ImageOptions(height_px=32, width_px=32))


@pytest.fixture(scope="module")
def built(server, photos) -> str:
    """The same dataset in a store, by few requests besides those of its shards."""
    output = f"{server.bucket()}/sets/set"
    server.clear()
    assert build(*flags(photos, output)) == 0
    # A slow machine asks more often whether the bucket is still there, for one name each time, and
    # renews its lock.
    others = r"train-\d{5}-of-\d{5}\.(tfrecord|json|parquet)|/report/|max-keys=1&|maxResults=1&"
    others += "|staging/lock"
    asked = [urllib.parse.unquote(a.target) for a in server.requests()]
    asked = [target for target in asked if not re.search(others, target)]
    fences = [target for target in asked if "staging/job.json" in target]
    assert len(asked) - len(fences) <= 60, asked
    # Read at the beginning, written, deleted with the rest; read by each shard that is begun,
    # finished, committed and rewritten, and three times by the other steps of the commit.
    assert len(fences) <= 3 + 4 * 8 + 3, fences
    return output


def assert_same(output: str, local: pathlib.Path, is_replacement: bool = False) -> None:
    """The same shards and manifest; that of a replacement says whose classes it has kept."""
    stored = contents(output)
    assert {n: data for n, data in stored.items() if SHARD.fullmatch(n)} == shard_bytes(local)
    told, expected = json.loads(stored["manifest.json"]), manifest(local)
    if is_replacement:
        expected["options"]["plan"]["pinned_classes"] = expected["classes"]
    for each in (told, expected):
        del each["digest"]
        # TensorFlow never writes a graph twice with the same bytes.
        graphs = {name for name in each["files"] if name.endswith(".pb")}
        each["files"] = {n: entry for n, entry in each["files"].items() if n not in graphs}
    assert to_json(told) == to_json(expected)
    assert not storage.list_folder(f"{output}/.staging")


def test_a_dataset_in_a_store_is_byte_for_byte_that_of_a_folder(built, local):
    assert_same(built, local)
    stored, here = contents(built), contents(str(local))
    assert stored.keys() == here.keys()
    # The report has the set's own name, a graph its folder's.
    differ = {name for name, data in here.items() if stored[name] != data}
    assert all(name.endswith(("index.html", ".pb")) for name in differ), differ
    assert verify.main([f"{built}/", "--workers", "1"]) == 0


def test_a_shard_costs_four_requests_and_three_at_the_commit(server, photos):
    output = f"{server.bucket()}/set"
    unit = unit_of(photos)
    places = places_of(output)
    # A client's first requests, which find out about the bucket, are not a shard's.
    storage.write(f"{output}/x", b"")
    assert not storage.exists(f"{output}/y")

    def finalize(result: ShardResult, places: ShardPlaces) -> None:
        finalize_shard(plan_finalize([result.without_details()])[0], places)
        stored = storage.read(places.final_path(result.name))
        assert hashlib.sha256(stored).hexdigest() == result.file.sha256

    def asked(number: int) -> None:
        assert len(server.requests()) == number, server.requests()
        server.clear()

    server.clear()
    result = write_shard(unit, places, OPTIONS)
    asked(4)  # a look for an earlier shard, the shard, its index, and the file beside them
    assert not storage.exists(places.final_path(result.name))
    server.clear()
    finalize(result, places)
    asked(3 + 1)  # a look at the shard, and copies of it and its index; the last is this test's
    again = write_shard(unit, places, OPTIONS)
    assert again.reused and again.file == result.file
    asked(4)


@pytest.mark.parametrize("is_late", [True, False])
def test_no_shard_of_a_job_that_lost_the_output_is_committed(server, photos, monkeypatch, is_late):
    """Its worker has just found its own job.json, and uploads before or after the newer job."""
    output = f"{server.bucket()}/set"
    unit, commit = unit_of(photos), storage.AtomicFile.commit
    lost, newer = (dataclasses.replace(places_of(output), job=job) for job in "ab")
    options = dataclasses.replace(OPTIONS, image=ImageOptions(height_px=64, width_px=64))

    def begin(places: ShardPlaces) -> None:
        notes = msgspec.json.encode(JobNotes(id=places.job))
        storage.write(f"{places.staging}/{JOB_NAME}", notes)

    def commit_beside_newer_job(file: storage.AtomicFile, *version: Any) -> str:
        versions = []

        def commit_of_newer_job(*given: Any) -> str:
            monkeypatch.setattr(storage.AtomicFile, "commit", commit)
            versions.extend([] if is_late else [commit(file, *version)])
            return commit(*given)

        begin(newer)
        monkeypatch.setattr(storage.AtomicFile, "commit", commit_of_newer_job)
        write_shard(unit, newer, options)
        return versions[0] if versions else commit(file, *version)

    begin(lost)
    monkeypatch.setattr(storage.AtomicFile, "commit", commit_beside_newer_job)
    with pytest.raises(LeaseLostError) if is_late else contextlib.nullcontext():
        write_shard(unit, lost, OPTIONS)
    name = unit.name
    (task,) = plan_finalize([read_result(name, newer).without_details()])
    # A lost job that uploaded first has replaced the result of the newer job.
    is_found = pytest.raises(OutputError, match="has changed since it was written")
    with contextlib.nullcontext() if is_late else is_found:
        finalize_shard(task, newer)
    found = examples(newer.staged_path(name))
    assert {record["image/height"][0] for record in found} == {64}


@ONLY_S3
def test_finished_result_rejects_a_replaced_shard(server, photos):
    output = f"{server.bucket()}/set"
    unit, places = unit_of(photos), places_of(output)
    result = write_shard(unit, places, OPTIONS)
    path = places.staged_path(result.name)
    whole = storage.read(path)
    storage.write(path, whole)  # of another version, with the same bytes
    assert write_shard(unit, places, OPTIONS).reused
    storage.write(path, whole[:-1] + b"x")
    again = write_shard(unit, places, OPTIONS)
    assert not again.reused and storage.read(path) == whole


@ONLY_S3
def test_a_finished_dataset_is_refused_and_then_replaced(server, built, local, photos, capfd):
    assert build(*flags(photos, built)) == 2
    server.fail(403, times=1000, matching="manifest.json", method="GET")
    assert build(*flags(photos, built, "--overwrite")) == 2
    server.heal()
    assert "manifest.json could not be read" in capfd.readouterr().err
    assert_same(built, local)
    stray = f"{built}/train-00000-of-00099.tfrecord"
    storage.write(stray, b"of another number of shards")
    server.clear()
    assert build(*flags(photos, built, "--overwrite")) == 0
    assert_same(built, local, is_replacement=True)
    assert not storage.exists(stray)
    # Nothing is written among the files of a dataset before its manifest is gone.
    asked = [(a.method, urllib.parse.unquote(a.target).split("?")[0]) for a in server.requests()]
    deleted = asked.index(("DELETE", next(t for _, t in asked if t.endswith("set/manifest.json"))))
    for method, target in asked[:deleted]:
        assert method in ("GET", "HEAD") or "/.staging/" in target or target.endswith("/o")


def renew_often():
    lease._RENEW_SEC = 0.1


@ONLY_S3
def test_a_job_whose_lease_was_taken_stops_with_a_sentence(server, photos):
    output = f"{server.bucket()}/set"
    path = f"{output}/.staging/lock"
    # Written when Beam has been imported: a signal in between may be answered by anybody's code.
    begun = f"{output}/.staging/{JOB_NAME}"
    process = ForkedBuild(*flags(photos, output), before=renew_often)
    wait_until(lambda: storage.exists(begun), process)
    storage.write(path, json.dumps({"host": "elsewhere", "pid": 1, "nonce": "x"}))
    said, _ = process.communicate()
    assert process.returncode == 2, said
    sentence = f"imageshards build: the lock {path} was taken by another job"
    assert said.splitlines()[-1].startswith(sentence)
    assert "Traceback" not in said
    assert not storage.exists(f"{output}/manifest.json")
    assert storage.exists(path)


@ONLY_S3
def test_a_refused_job_leaves_nothing_in_the_bucket(server, tmp_path, capfd):
    bucket = server.bucket()
    (tmp_path / "none").mkdir()
    assert build("--input", tmp_path / "none", "--output", f"{bucket}/set") == 2
    assert list(storage.files_below(bucket)) == []
    holder = {"host": "elsewhere", "pid": 1, "nonce": "x"}
    storage.write(f"{bucket}/held/.staging/lock", json.dumps(holder))
    capfd.readouterr()
    assert build("--input", tmp_path / "none", "--output", f"{bucket}/held") == 2
    said = capfd.readouterr().err
    assert "in use by another job (process 1 on elsewhere" in said and said.count("\n") == 1


@ONLY_S3
@pytest.mark.long
def test_extra_columns_are_analysed_here_and_the_transform_is_put_there(server, photos, tmp_path):
    paths = sorted(photos.glob("*/[cd]?? *.jpg"))
    rows = [f"{path},{path.parent.name},{i * 0.37:.2f}" for i, path in enumerate(paths)]
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(["image,label,weight", *rows]) + "\n")
    more = ["--columns", "weight:float:zscore", "--allow_any_path", "--no_report"]
    output = f"{server.bucket()}/set"
    for place in (tmp_path / "set", output):
        assert build(*flags(table, place), *more) == 0
    assert_same(output, tmp_path / "set")
    assert contents(output).keys() == contents(str(tmp_path / "set")).keys()
    assert "weight" in storage.read(f"{output}/transform/metadata/schema.pbtxt").decode()
