"""What the benchmarks rest on: same work on both sides, honest sums, clear arguments."""

import pathlib

import pytest

from benchmarks import measure, plain_loop
from benchmarks.measure import run_module
from benchmarks.outcome import Figure
from imageshards.tfrecord import read_records
from tests.support.builds import build, class_folders

pytestmark = pytest.mark.process


def payloads(folder: pathlib.Path) -> list[bytes]:
    paths = folder.glob("*.tfrecord")
    return sorted(record.payload for path in paths for record in read_records(str(path)))


@pytest.mark.long
@pytest.mark.slow
def test_the_loop_makes_the_very_records_of_a_build(tmp_path):
    photos = class_folders(tmp_path / "photos", {"ant": 11, "bee's nest": 6})
    loop, ours = tmp_path / "loop", tmp_path / "ours"
    arguments = ["--input", str(photos), "--output", str(loop), "--num_shards", "3"]
    assert plain_loop.main([*arguments, "--workers", "1"]) == 0
    assert build("--input", photos, "--output", ours, "--splits", "train=1",
                 "--num_shards", "3", "--no_report") == 0  # fmt: skip
    assert payloads(loop) == payloads(ours)
    assert len(payloads(loop)) == 17
    assert len(list(loop.iterdir())) == 3


def test_a_tree_of_processes_is_measured_whole(tmp_path, monkeypatch):
    burn = "import time\nwhile time.process_time() < {}: pass\n"
    (tmp_path / "burns.py").write_text(
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {burn.format(0.3)!r}], check=True)\n"
        + burn.format(0.2)
    )
    monkeypatch.setattr(measure, "REPOSITORY", tmp_path)
    found = run_module("burns", log=tmp_path / "log", memory=True)
    assert found.cpu_seconds >= 0.49
    assert 0.19 <= found.main_cpu_seconds < 0.45
    assert found.seconds >= 0.19
    assert found.peak_rss_bytes > 1e6


def test_the_median_decides():
    assert Figure("speed", (0.90, 0.95, 0.99), 0.95).met
    assert not Figure("speed", (0.90, 0.94, 0.99), 0.95).met
    assert not Figure("memory", (1.2, 1.1, 1.2), 1.15, at_least=False).met
