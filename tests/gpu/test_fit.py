"""`ims.fit` on GPUs: in each strategy, and what its steps copy, by the trace of a fake GPU."""

import pathlib
from typing import NamedTuple

import numpy as np
import pytest

from imageshards.manifest import BOX_FEATURES
from tests.support import gpus
from tests.support.dataset_factory import Dataset

pytestmark = [pytest.mark.gpu, pytest.mark.long, pytest.mark.process, gpus.needs_gpus]

PICTURE_BYTES = 64 * 64 * 3
STEPS, BATCH, VALIDATED = 6, 8, 2


@pytest.mark.parametrize(
    ("count", "kinds"), [(1, ("default", "one", "mirrored")), (2, ("mirrored",))]
)
def test_fit_trains_and_validates_in_every_strategy(shapes, count, kinds):
    found = gpus.scenario(count, "fit", shapes, *kinds)
    for kind in kinds:
        one = found[kind]
        assert (
            one["devices"] == [f"GPU:{i}" for i in range(count)]
            and one["evaluate"]["loss"] == one["val_loss"][-1]
        )
        assert one["loss"][1] < one["loss"][0] and one["shares"]
        assert one["keras"] == ["accuracy", "loss", "val_accuracy", "val_loss"]
        np.testing.assert_allclose(one["val_loss"], found[kinds[0]]["val_loss"], rtol=1e-5)


def test_models_of_two_strategies_in_a_process_are_a_sentence(shapes):
    *fine, said = gpus.scenario(2, "two_strategies", shapes)
    assert fine == ["", ""] and "one tf.distribute strategy over several devices" in said


class Line(NamedTuple):
    """A line of the trace: µs, what happened on which device, and bytes or an operation."""

    time: int
    kind: str
    device: int
    what: str


def _lines(path: pathlib.Path) -> list[Line]:
    fields = [line.split() for line in path.read_text("utf-8").splitlines()]
    return sorted(Line(int(at), kind, int(device), what) for at, kind, device, what in fields)


def _of(lines: list[Line], kind: str, device: int, *whats: object) -> list[int]:
    """When this happened on a device."""
    wanted = {str(what) for what in whats}
    return [at for at, *of, what in lines if of == [kind, device] and what in wanted]


@gpus.needs_trace
@pytest.mark.parametrize(
    ("count", "kind", "augment", "side"),
    [
        (1, "default", "none", "host"),
        (2, "mirrored", "strong", "device"),
        (1, "mirrored", "light", "device"),
        (1, "one", "strong", "device"),
        (2, "mirrored", "light", "host"),
    ],
)
def test_a_step_copies_its_batch_once_and_ahead(pictures, tmp_path, count, kind, augment, side):
    path = tmp_path / "trace"
    environment = {"FAKE_GPU_TRACE": str(path), "FAKE_GPU_BUSY": "Conv2D=40"}
    asked = (kind, augment, side, STEPS, VALIDATED)
    times = gpus.scenario(count, "traced", pictures, *asked, **environment)
    lines = _lines(path)
    batch, validated = (n * PICTURE_BYTES // count for n in (BATCH, VALIDATED))
    # The second epoch makes no graphs any more.
    begin, end, over = times["epoch"][1], times["validation"][1], times["validated"][1]
    for device in range(count):
        copied = _of(lines, "h2d", device, batch)
        assert 2 * STEPS <= len(copied) <= 2 * STEPS + 4  # some are copied ahead of the end
        assert len(_of(lines, "h2d", device, validated)) == 2 * 9
        mine = [o for o in lines if o.device == device and begin <= o.time < end]
        others = {int(o.what) for o in mine if o.kind == "h2d"} - {batch}
        # Nothing else is as large as a picture. No operation of a step runs on the host: nothing
        # comes back from a step but 8 bytes by which TensorFlow's iterator asks for a batch.
        assert max(others) < PICTURE_BYTES // count
        back = [o for o in mine if o.kind == "d2h" and o.time < times["step"][-1]]
        assert len(back) <= (kind != "default") * (STEPS + 1) and {o.what for o in back} <= {"8"}
        assert max(int(o.what) for o in mine if o.kind == "d2h") <= 8
        ends = _of(lines, "end", device, "Conv2D")
        ends_of_training = [at for at in ends if at < times["validation"][0]]
        assert len(ends_of_training) == STEPS
        _assert_ahead(copied[1:STEPS], ends_of_training)
        of_validation = [at for at in ends if end <= at]
        copied = [at for at in _of(lines, "h2d", device, validated) if end <= at < over]
        _assert_ahead(copied[1:], of_validation)


def _assert_ahead(copied: list[int], ends: list[int]) -> None:
    """Batches are on the device before the step before has ended, where the reader is in time."""
    assert any(at < end for at, end in zip(copied, ends, strict=False)), (copied, ends)


@gpus.needs_trace
@pytest.mark.parametrize(
    ("busy_ms", "fetch_ms", "reads"),
    [(200, 250, "no"), (200, 250, "reads"), (250, 0, "no"), (60, 240, "no")],
)
@pytest.mark.parametrize("count", [1, 2])
def test_waiting_is_the_share_of_the_time_in_which_devices_lack_a_batch(
    pictures, tmp_path, count, busy_ms, fetch_ms, reads
):
    path, kind = tmp_path / "trace", "default" if count == 1 else "mirrored"
    environment = {"FAKE_GPU_TRACE": str(path), "FAKE_GPU_BUSY": f"Conv2D={busy_ms}"}
    found = gpus.scenario(count, "waiting", pictures, kind, fetch_ms, reads, **environment)
    lines = _lines(path)
    # Figures are of the time from the end of the epoch's first step to the end of its last one.
    ends = _of(lines, "end", 0, "Conv2D")[12:]
    copied = _of(lines, "h2d", 0, BATCH * PICTURE_BYTES // count)[13:24]
    second = (ends[-1] - ends[0]) / 1e6
    lacking = sum(max(0, at - end) for at, end in zip(copied, ends, strict=False)) / 1e6
    # A busy machine tells the host late that a step has ended.
    assert found["wait_fraction"][1] == pytest.approx(lacking / second, abs=0.1)
    assert found["images_per_second"][1] == pytest.approx(11 * BATCH / second, rel=0.3)


def test_a_training_from_the_pixel_cache_may_end_while_devices_wait_for_a_batch(pictures):
    """TensorFlow must not delete the iterator of the training while a thread still reads."""
    environment = {} if gpus.REAL_GPUS else {"FAKE_GPU_BUSY": "Conv2D=100"}
    found = gpus.scenario(2, "waiting", pictures, "mirrored", 150, "no", "pixels", **environment)
    assert len(found["wait_fraction"]) == 2


@pytest.mark.parametrize("augment", ["light", "strong"])
def test_the_device_augments_as_the_host(pictures, augment):
    found = gpus.scenario(1, "augmented", pictures, augment)
    # The host crops while it decodes, and a GPU rounds otherwise: along edges only.
    assert found["device"] == "GPU:0" and found["pixels"] < 1 and found["labels"] < 1e-5


@pytest.mark.parametrize(("count", "kind"), [(1, "default"), (2, "mirrored")])
def test_boxes_move_on_the_device_as_on_the_host(tmp_path, count, kind):
    dataset = Dataset(tmp_path / "boxes", {"train": 3}, 8)
    lists = {name: {"dtype": "float32", "shape": None} for name in BOX_FEATURES}
    dataset.manifest["features"] |= lists
    sides = dict(zip(BOX_FEATURES, ([0.1, 0.5], [0.4, 0.9], [0.2, 0.5], [0.6, 0.8]), strict=True))
    dataset.change_records(lambda number: sides)
    dataset.save()
    host, device = gpus.scenario(count, "boxes", tmp_path / "boxes", kind)
    assert host > 0 and device == pytest.approx(host, rel=0.05)
