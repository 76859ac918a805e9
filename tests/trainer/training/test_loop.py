"""Epochs and steps: arithmetic without data; what the reader costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from trainer.training.checkpoint import RunState  # noqa: E402
from trainer.training.loop import SAMPLE_IMAGES, Epochs, Loop, total_steps  # noqa: E402

counts = st.integers(1, 64).flatmap(lambda b: st.tuples(st.integers(b, 5000), st.just(b)))


@given(counts, st.integers(0, 50))
def test_an_epoch_ends_with_its_last_whole_batch(counts: tuple[int, int], epoch: int) -> None:
    records, batch = counts
    epochs = Epochs(records, batch, 10**9)
    end = epochs.end(epoch)
    seen = end * batch
    assert 0 <= (epoch + 1) * records - seen < batch
    assert end > (epochs.end(epoch - 1) if epoch else 0)


@given(counts, st.integers(0, 20_000))
def test_every_step_belongs_to_the_epoch_whose_end_comes_next(
    counts: tuple[int, int], step: int
) -> None:
    epochs = Epochs(*counts, 10**9)
    epoch = epochs.of_step(step)
    assert step < epochs.end(epoch)
    assert epoch == 0 or epochs.end(epoch - 1) <= step


@given(counts, st.integers(1, 50))
def test_a_run_of_whole_epochs_ends_where_its_last_epoch_does(
    counts: tuple[int, int], number: int
) -> None:
    records, batch = counts
    total = total_steps(number, None, records, batch)
    epochs = Epochs(records, batch, total)
    assert total == epochs.end(number - 1) == epochs.full_end(number - 1)
    assert epochs.count == number
    assert total_steps(number, 17, records, batch) == 17


@given(counts, st.integers(1, 20_000))
def test_a_run_of_steps_may_end_within_its_last_epoch(counts: tuple[int, int], total: int) -> None:
    epochs = Epochs(*counts, total)
    last = epochs.count - 1
    assert epochs.end(last) == total <= epochs.full_end(last)
    assert last == 0 or epochs.end(last - 1) < total


def reader_cpu_sec(batches: Iterator[None], batch_size: int) -> float | None:
    """What a loop measures of a reader that makes these batches."""

    class Stream:
        def iterator(self, step: int) -> Iterator[None]:
            return batches

    parts: dict[str, Any] = dict.fromkeys(
        ["model", "train_step", "checkpoints", "checkpoint_steps", "output", "validate"]
    )
    stream: Any = Stream()
    epochs = Epochs(batch_size, batch_size, 1)
    return Loop(stream=stream, epochs=epochs, state=RunState({}, 1), **parts).reader_cpu_sec()


def test_the_reader_costs_the_cpu_time_of_the_batches_that_were_drawn() -> None:
    drawn = []

    def batches() -> Iterator[None]:
        while True:
            drawn.append(1)
            end_sec = time.process_time() + 0.05
            while time.process_time() < end_sec:
                pass
            yield

    found = reader_cpu_sec(batches(), SAMPLE_IMAGES // 4)
    assert len(drawn) == 1 + 4  # the first one opens the reader
    assert found == pytest.approx(0.05 / (SAMPLE_IMAGES // 4), rel=0.3)


def test_a_broken_record_behind_the_last_step_leaves_the_reader_unmeasured() -> None:
    def batches() -> Iterator[None]:
        yield
        raise tf.errors.DataLossError(None, None, "corrupted record")

    assert reader_cpu_sec(batches(), 8) is None
