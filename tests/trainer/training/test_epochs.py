"""Epochs, steps and positions: arithmetic without data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainer.training.epochs import end_of_epoch, epoch_of_step, total_steps

counts = st.integers(1, 64).flatmap(lambda b: st.tuples(st.integers(b, 5000), st.just(b)))


@given(counts, st.integers(0, 50))
def test_an_epoch_ends_with_the_last_batch_that_fits_and_the_rest_opens_the_next(
    counts: tuple[int, int], epoch: int
) -> None:
    records, batch = counts
    end = end_of_epoch(epoch, records, batch)
    seen = end * batch
    assert 0 <= (epoch + 1) * records - seen < batch
    assert end > (end_of_epoch(epoch - 1, records, batch) if epoch else 0)


@given(counts, st.integers(0, 20_000))
def test_every_step_belongs_to_the_epoch_whose_end_comes_next(
    counts: tuple[int, int], step: int
) -> None:
    records, batch = counts
    epoch = epoch_of_step(step, records, batch)
    assert step < end_of_epoch(epoch, records, batch)
    assert epoch == 0 or end_of_epoch(epoch - 1, records, batch) <= step


@given(counts, st.integers(1, 50))
def test_a_run_of_whole_epochs_ends_where_its_last_epoch_does(
    counts: tuple[int, int], epochs: int
) -> None:
    records, batch = counts
    total = total_steps(epochs, None, records, batch)
    assert total == end_of_epoch(epochs - 1, records, batch)
    assert epoch_of_step(total - 1, records, batch) == epochs - 1
    assert total_steps(epochs, 17, records, batch) == 17
