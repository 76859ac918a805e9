"""What the benchmarks of the reader rest on: every reader reads, in turn, and is counted."""

from __future__ import annotations

import pytest

from benchmarks import reader_cases, reader_rounds
from benchmarks.cases import Settings
from benchmarks.measure import BenchmarkError
from benchmarks.reader_cases import by_cpu_time, faster, speed_rows
from benchmarks.reader_kinds import Job
from benchmarks.reader_rounds import Window, in_turn
from tests.support.builds import class_folders

pytestmark = pytest.mark.process

RECORDS = 96


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


def test_rates_are_compared_window_by_window():
    ours, fast = [window(90), window(95)], [window(100)] * 2
    assert faster(ours, fast) == pytest.approx([0.9, 0.95])
    assert speed_rows({"ours": ours})["ours"] == pytest.approx([92.5, 100])
    assert by_cpu_time(ours, [Window(10, 1.0, 0.0009)] * 2) == "by CPU time per image: 0.9"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", reader_rounds.KINDS)
def test_every_reader_reads(kind, settings, shards):
    read = reader_rounds.KINDS[kind](Job(str(shards), str(reader_cases.photos(settings))))
    # More than one pass: they are endless.
    total = 0
    while total <= RECORDS:
        found = read(0.05)
        assert found > 0
        total += found


def test_a_side_that_fails_says_why(tmp_path):
    with pytest.raises(BenchmarkError, match="which does not exist"):
        in_turn({"a": "turbo"}, ("--data", str(tmp_path / "absent")), tmp_path, 1, 0.1)
