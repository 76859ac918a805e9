"""How many steps a run and its epochs are: pure arithmetic on counts."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a run, each by the step it ends with.

    Batches are cut from one endless stream, so an epoch's leftover records open the next one:
    after E epochs all but the last < `batch_size` records were seen E times.

    Attributes:
        num_records: In one pass over the data.
        batch_size: Global batch.
        total_steps: Of the whole run, which may end within an epoch.
    """

    num_records: int
    batch_size: int
    total_steps: int

    @property
    def count(self) -> int:
        """Epochs begun by the end of the run."""
        return self.of_step(self.total_steps - 1) + 1

    def end(self, epoch: int) -> int:
        """The step with which `epoch` (from 0) ends, or with which the run ends within it."""
        return min(self.total_steps, self.full_end(epoch))

    def full_end(self, epoch: int) -> int:
        """The step with which `epoch` would end: floor((epoch + 1) * records / batch)."""
        return (epoch + 1) * self.num_records // self.batch_size

    def of_step(self, step: int) -> int:
        """The epoch (from 0) that the step after `step` steps belongs to."""
        # The first whose end is beyond `step`: (epoch + 1) * records >= (step + 1) * batch.
        return -(-(step + 1) * self.batch_size // self.num_records) - 1


def total_steps(epochs: int, steps: int | None, num_records: int, batch_size: int) -> int:
    """Steps of a whole run: `steps` where given, else those of `epochs`."""
    return steps if steps is not None else epochs * num_records // batch_size
