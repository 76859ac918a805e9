"""How many steps an epoch is: pure arithmetic on counts."""

from __future__ import annotations


def end_of_epoch(epoch: int, num_records: int, batch_size: int) -> int:
    """The step with which `epoch` (from 0) ends: floor((epoch + 1) * records / batch).

    Batches are cut from one endless stream, so an epoch's leftover records open the next
    one: after E epochs all but the last < `batch_size` records were seen E times.
    """
    return (epoch + 1) * num_records // batch_size


def epoch_of_step(step: int, num_records: int, batch_size: int) -> int:
    """The epoch (from 0) that the step after `step` steps belongs to."""
    # The first epoch whose end is beyond `step`: (epoch + 1) * records >= (step + 1) * batch.
    return -(-(step + 1) * batch_size // num_records) - 1


def total_steps(epochs: int, steps: int | None, num_records: int, batch_size: int) -> int:
    """Steps of a whole run: `steps` where given, else those of `epochs`."""
    return steps if steps is not None else epochs * num_records // batch_size
