"""Whether the reader or the model limited the speed of a run."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest

tf = pytest.importorskip("tensorflow")

from trainer.training import summary  # noqa: E402
from trainer.training.summary import SAMPLE_IMAGES, bottleneck, reader_cpu_sec  # noqa: E402


def epoch(images_per_sec: float | None, wait_fraction: float | None) -> dict[str, float | None]:
    return {"images_per_second": images_per_sec, "wait_fraction": wait_fraction}


@pytest.mark.parametrize(
    ("wait_fraction", "reader_sec", "sentence"),
    [
        (
            0.4,
            0.005,
            "input-bound: the model waited 40% of the time for data and could take 1,667 images/s; "
            "about 9 cores would feed it",
        ),
        (
            0.01,
            0.0009,
            "compute-bound: the model waited 1.0% of the time for data; about 1 core would do for "
            "the reader",
        ),
        (
            0.0,
            0.002,
            "compute-bound: the model waited 0.0% of the time for data; about 2 cores would do for "
            "the reader",
        ),
    ],
)
def test_the_sentence_names_the_slower_side_and_the_cores_the_reader_needs(
    wait_fraction: float, reader_sec: float, sentence: str
) -> None:
    slow_start = epoch(10.0, 0.9)
    assert bottleneck([slow_start, epoch(1000.0, wait_fraction)], reader_sec) == sentence
    assert bottleneck([epoch(1000.0, wait_fraction)], reader_sec) == sentence


def test_nothing_is_said_where_too_little_was_measured() -> None:
    assert bottleneck([epoch(1000.0, 1.0)], 0.01) is None  # it only waited
    assert bottleneck([epoch(None, None)], 0.01) is None
    assert bottleneck([epoch(1000.0, 0.5)], None) is None


def test_the_reader_costs_the_cpu_time_of_the_batches_that_were_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = types.SimpleNamespace(used_sec=0.0, sleep=lambda seconds: None)
    clock.process_time = lambda: clock.used_sec
    monkeypatch.setattr(summary, "time", clock)
    drawn = []

    def batches() -> Iterator[None]:
        while True:
            drawn.append(1)
            clock.used_sec += 0.05
            yield

    found = reader_cpu_sec(batches(), SAMPLE_IMAGES // 4)
    assert len(drawn) == 1 + 4  # the first one opens the reader
    assert found == pytest.approx(0.05 / (SAMPLE_IMAGES // 4))


def test_a_broken_record_behind_the_last_step_leaves_the_reader_unmeasured() -> None:
    def batches() -> Iterator[None]:
        yield
        raise tf.errors.DataLossError(None, None, "corrupted record")

    assert reader_cpu_sec(batches(), 8) is None
