"""What the benchmarks of the reader rest on: every reader reads, in turn, and is counted."""

import pytest

from benchmarks import reader_cases, reader_rounds, waits
from benchmarks.cases import Settings
from benchmarks.reader_kinds import Job
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


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", reader_rounds.KINDS)
def test_every_reader_reads(kind, settings, shards, request):
    from tensorflow.python.framework import config

    request.addfinalizer(config.disable_op_determinism)  # what one kind asks for
    read = reader_rounds.KINDS[kind](Job(str(shards), str(reader_cases.photos(settings))))
    # More than one pass: they are endless.
    total = 0
    while total <= RECORDS:
        found = read(0.05)
        assert found > 0
        total += found


@pytest.mark.long
def test_waits_of_an_accelerator_are_those_of_the_time_that_it_does_not_compute(shards):
    found = waits.measure(str(shards), {"batch_size": 32, "image_size": 48}, 0.2, 5)
    assert found["startup_msec"] > 0 and 0 < found["utilization"] < 1
    assert found["pass_end_msec"] > 0  # every third batch has the last of 96 records
    assert list(found["wait_msec"]) == ["median", "p99", "p99.9"]
