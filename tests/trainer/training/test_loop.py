"""Epochs and steps: arithmetic without data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tensorflow")

from trainer.training.loop import Epochs, total_steps

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
