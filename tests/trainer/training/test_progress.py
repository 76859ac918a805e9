"""Who waits for whom, from the seconds that were measured."""

from __future__ import annotations

import pytest

from trainer.training.metrics import epoch_record, finite, line
from trainer.training.progress import StepClock, judge


def test_fetching_counts_as_waiting_only_beyond_the_step_that_still_runs() -> None:
    clock = StepClock()
    clock.fetched(0.3)
    assert clock.wait_sec == pytest.approx(0.3)  # nothing known of a step yet
    clock.dispatched(0.01)
    clock.probed(0.11)  # 0.1 s go on after the step was handed over
    clock.fetched(0.08)
    assert clock.wait_sec == pytest.approx(0.3)
    clock.fetched(0.25)
    assert clock.wait_sec == pytest.approx(0.3 + 0.15)


def test_a_synchronous_device_hides_no_waiting() -> None:
    clock = StepClock()
    clock.dispatched(0.5)
    clock.probed(0.5)
    clock.fetched(0.2)
    assert clock.wait_sec == pytest.approx(0.2)


def test_an_epoch_that_goes_on_keeps_its_seconds() -> None:
    clock = StepClock()
    clock.reset(5.0, 1.0)
    clock.pause()
    assert 5.0 <= clock.train_sec < 5.5 and clock.wait_sec == 1.0


@pytest.mark.parametrize(
    ("wait_sec", "reader_sec", "words", "cores"),
    [
        (4.0, 0.005, "input-bound: the model waited 40%", 9),
        (0.1, 0.001, "compute-bound: the model waited 1.0%", 1),
        (0.0, 0.02, "compute-bound: the model waited 0.0%", 2),
    ],
)
def test_the_verdict_names_the_slower_side_and_the_cores_that_would_do(
    wait_sec: float, reader_sec: float, words: str, cores: int
) -> None:
    images = 10_000 if cores == 9 else 1000
    found = judge(images, 10.0, wait_sec, reader_sec)
    assert found is not None and words in str(found)
    assert found.cores == cores and f"{cores} core" in str(found)
    assert found.model_images_per_sec == pytest.approx(images / (10.0 - wait_sec))


def test_no_verdict_where_nothing_was_measured() -> None:
    assert judge(0, 1.0, 0.0, 0.01) is None
    assert judge(10, 1.0, 1.0, 0.01) is None
    assert judge(10, 1.0, 0.0, 0.0) is None


def test_an_epochs_record_divides_by_the_weight_and_knows_no_nan() -> None:
    record = epoch_record(2, 40, (30.0, 15.0, 20.0), 1280, 4.0, 1.0, 0.01)
    assert record == {
        "epoch": 2,
        "step": 40,
        "loss": 1.5,
        "accuracy": 0.75,
        "val_loss": None,
        "val_accuracy": None,
        "images_per_second": 320.0,
        "wait_fraction": 0.25,
        "learning_rate": 0.01,
    }
    assert "epoch 2/3" in line(record, 3) and "waited 25% for data" in line(record, 3)
    slow = epoch_record(1, 1, (1.0, 1.0, 1.0), 8, 10.0, 0.0, 0.1)
    assert "0.8 images/s" in line(slow, 1) and "320 images/s" in line(record, 3)
    empty = epoch_record(1, 1, (0.0, 0.0, 0.0), 0, 0.0, 0.0, 0.1)
    assert empty["loss"] is empty["images_per_second"] is empty["wait_fraction"] is None
    assert line(empty, 1) == "epoch 1/1"
    assert finite(float("nan")) is finite(float("inf")) is finite(None) is None
