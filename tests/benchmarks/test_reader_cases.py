"""What the benchmarks of the reader rest on: every reader reads, in turn, and is counted."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks import reader_cases, reader_probe, reader_side
from benchmarks.cases import Settings
from benchmarks.measure import BenchmarkError, remove
from benchmarks.reader_cases import best, by_cpu_time, faster, speed_rows
from benchmarks.reader_kinds import Job
from benchmarks.reader_rounds import Window, in_turn
from tests.support.builds import class_folders

pytestmark = pytest.mark.process

RECORDS = 96
HASTY = ("--warm_up", "0", "--settle", "0")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    sources = sorted(class_folders(folder / "photos", {"ant": 5, "bee": 4}).rglob("*.jpg"))
    return Settings(folder, sources, records=RECORDS, rounds=1, window_seconds=0.1)


@pytest.fixture(scope="module")
def shards(settings):
    return reader_cases.shards(settings)


def window(images_per_second: float) -> Window:
    return Window(images=10, seconds=10 / images_per_second, cpu_seconds=0.001)


def test_rates_are_compared_window_by_window_with_the_best():
    ours, slow, fast = [window(90), window(95)], [window(80), window(90)], [window(100)] * 2
    assert best(slow, fast) is fast
    assert faster(ours, fast) == pytest.approx([0.9, 0.95])
    assert speed_rows({"ours": ours})["ours"] == pytest.approx([92.5, 100])
    assert by_cpu_time(ours, [Window(10, 1.0, 0.0009)] * 2) == "by CPU time per image: 0.9"


@pytest.mark.long
@pytest.mark.slow
def test_shards_are_built_once_from_repeated_photos(settings, shards):
    manifest = json.loads((shards / "manifest.json").read_text())
    assert manifest["splits"]["train"]["num_records"] == RECORDS
    assert manifest["image"]["size"] in (256, [256, 256])
    before = os.stat(shards / "manifest.json").st_mtime_ns
    assert reader_cases.shards(settings) == shards
    assert os.stat(shards / "manifest.json").st_mtime_ns == before


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in reader_side.KINDS if k != "turbo_processes"])
def test_every_reader_reads(kind, settings, shards):
    read = reader_side.KINDS[kind](Job(str(shards), str(reader_cases.photos(settings))))
    # More than one pass: they are endless.
    total = 0
    while total <= RECORDS:
        found = read(0.05)
        assert found > 0
        total += found


@pytest.mark.long
@pytest.mark.slow
def test_limits_decode_what_the_reader_ships(shards):
    import numpy as np

    from benchmarks import reader_limits

    jpegs = reader_limits._jpegs(Job(str(shards), ""))
    assert len(jpegs) == RECORDS
    one = reader_limits.crop_resize(jpegs[0], np.array([16, 16, 224, 224], np.int32))
    assert (one.shape, one.dtype.name) == ((224, 224, 3), "uint8")


@pytest.mark.long
@pytest.mark.slow
def test_sides_are_processes_that_are_measured_in_turn(shards, tmp_path):
    kinds = {"threads": "turbo_threads", "processes": "turbo_processes"}
    found = in_turn(kinds, ("--data", str(shards), *HASTY), tmp_path, 2, 0.2)
    assert list(found) == list(kinds)
    for windows in found.values():
        assert len(windows) == 2
        assert all(w.images > 0 and 0.19 < w.seconds < 5 for w in windows)
        # A side's children count, too.
        assert sum(w.cpu_seconds for w in windows) > 0


def test_a_side_that_fails_says_why(tmp_path):
    with pytest.raises(BenchmarkError, match="which does not exist"):
        in_turn({"a": "turbo_threads"}, ("--data", str(tmp_path / "absent")), tmp_path, 1, 0.1)


@pytest.mark.long
@pytest.mark.slow
def test_probes_tell_what_skipping_and_memory_take(shards, capsys):
    arguments = ["--data", str(shards), "--copies", "3"]
    reader_probe.main(["skip", *arguments, "--records", "250"])
    found = json.loads(capsys.readouterr().out)
    assert found["skipped"] == 250
    assert min(found["begin_seconds"], found["resume_seconds"]) > 0
    reader_probe.main(["memory", *arguments, "--records", "64"])
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == 3 * RECORDS
    assert found["peak_bytes"] >= found["before_bytes"] > 1e6
    assert found["estimated_bytes"] > 1e6


@pytest.mark.long
@pytest.mark.slow
def test_shards_of_another_size_are_not_taken_for_these(settings, shards):
    manifest = json.loads((shards / "manifest.json").read_text())
    other = settings.work / f"{shards.name.rpartition('-')[0]}-{RECORDS + 1}"
    other.mkdir()
    (other / "manifest.json").write_text(json.dumps(manifest))
    settings = Settings(settings.work, settings.sources, records=RECORDS + 1)
    with pytest.raises(BenchmarkError, match=f"holds {RECORDS} records, not {RECORDS + 1}"):
        reader_cases.shards(settings)
    remove(other)
