"""How fast a run goes, and who waits for whom."""

from __future__ import annotations

import dataclasses
import math
import time

from imageshards.progress import progress_bar

# Below this share of the time, waiting for data is not worth a word.
STARVED = 0.05


class StepClock:
    """Seconds of training, and those of them in which the devices had nothing to do.

    A step is handed to the devices and may still run while the next batch is fetched, so
    the time spent fetching is waiting only as far as it lasts longer than that step. Every
    `PROBE_STEPS`-th step is waited for, which tells how long a step takes by itself.
    """

    PROBE_STEPS = 32

    def __init__(self) -> None:
        self.train_sec = 0.0
        self.wait_sec = 0.0
        self._step_sec: float | None = None
        self._dispatch_sec = 0.0
        self._since = time.perf_counter()

    def resume(self) -> None:
        """Starts the clock again after something that was no training."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stops it."""
        now = time.perf_counter()
        self.train_sec += now - self._since
        self._since = now

    def fetched(self, seconds: float) -> None:
        """A batch took so long to come."""
        running = max(0.0, (self._step_sec or 0.0) - self._dispatch_sec)
        self.wait_sec += max(0.0, seconds - running)

    def dispatched(self, seconds: float) -> None:
        """The step was handed over in so many seconds."""
        self._dispatch_sec = seconds

    def probed(self, seconds: float) -> None:
        """A step took so long from its beginning to its end."""
        self._step_sec = seconds

    def reset(self, train_sec: float = 0.0, wait_sec: float = 0.0) -> None:
        """Begins a new epoch, or goes on with one."""
        self.train_sec, self.wait_sec = train_sec, wait_sec
        self.resume()


class ProgressBar:
    """One line on a terminal that shows how an epoch goes; silent elsewhere."""

    def __init__(self, title: str, done: int, total: int, batch_size: int) -> None:
        self._batch_size = batch_size
        self._bar = progress_bar(
            total=total * batch_size,
            initial=done * batch_size,
            desc=title,
            unit=" images",
            unit_scale=True,
        )

    def step(self, loss: float | None, wait_fraction: float) -> None:
        """One more step is done."""
        if not self._bar.disable:
            shown = f"loss {loss:.3f}, " if loss is not None else ""
            self._bar.set_postfix_str(f"{shown}waited {wait_fraction:.0%}", refresh=False)
        self._bar.update(self._batch_size)

    def close(self) -> None:
        """Removes the line."""
        self._bar.close()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether the reader or the model was the slower one.

    Attributes:
        wait_fraction: Share of the time the model waited for data.
        model_images_per_sec: What it would do if it never waited.
        cores: Cores with which the reader keeps up with that.
    """

    wait_fraction: float
    model_images_per_sec: float
    cores: int

    def __str__(self) -> str:
        word = "cores" if self.cores != 1 else "core"
        if self.wait_fraction > STARVED:
            return (
                f"input-bound: the model waited {self.wait_fraction:.0%} of the time for data and "
                f"could take {self.model_images_per_sec:,.0f} images/s; about {self.cores} {word} "
                "would feed it"
            )
        return (
            f"compute-bound: the model waited {self.wait_fraction:.1%} of the time for data; about "
            f"{self.cores} {word} would do for the reader"
        )


def judge(
    images: int, train_sec: float, wait_sec: float, reader_sec_per_image: float
) -> Verdict | None:
    """The verdict on a stretch of training.

    Args:
        images: Trained on.
        train_sec: In so many seconds.
        wait_sec: Of which the model waited for data.
        reader_sec_per_image: What one core needs to read, decode and batch one image.

    Returns:
        None where nothing was measured.
    """
    busy_sec = train_sec - wait_sec
    if images < 1 or busy_sec <= 0 or reader_sec_per_image <= 0:
        return None
    rate = images / busy_sec
    cores = max(1, math.ceil(rate * reader_sec_per_image))
    return Verdict(wait_sec / train_sec, rate, cores)
