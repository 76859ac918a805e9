"""What is decided before Beam is imported."""

from __future__ import annotations

import pytest

from beam_pipeline import run as driver
from beam_pipeline.options import BuildOptions, InputOptions


@pytest.mark.parametrize(
    ("cores", "source", "output", "flags", "expected"),
    [
        (1, "in", "out", [], 1),
        (16, "in", "out", [], 16),
        (1, "gs://a/in", "out", [], 2),  # while one waits for a store the other goes on
        (8, "in", "s3://a/out", [], 9),
        (16, "gs://a/in", "gs://a/out", [], 18),
        (17, "gs://a/in", "gs://a/out", [], 20),
        (16, "gs://a/in", "gs://a/out", ["--direct_num_workers", "0"], 18),
        (16, "gs://a/in", "gs://a/out", ["--direct_num_workers", "3"], 3),
        (16, "in", "out", ["--direct_num_workers", "20"], 20),
    ],
)
def test_number_of_processes(monkeypatch, cores, source, output, flags, expected):
    monkeypatch.setattr(driver, "available_cores", lambda: cores)
    options = BuildOptions(InputOptions(source), output)
    assert driver._pool_size(options, flags) == (True, expected)


@pytest.mark.parametrize("runner", ["FlinkRunner", "PortableRunner", "PrismRunner"])
def test_other_runners_bring_their_own_processes(runner):
    options = BuildOptions(InputOptions("in"), "out")
    assert not driver._pool_size(options, ["--runner", runner])[0]
