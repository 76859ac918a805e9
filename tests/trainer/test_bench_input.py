"""`imageshards bench`: rows add up, and every row is the reader that trains."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys

import numpy as np
import pytest
import tqdm

from tests.support.trainer_data import make_data_set
from trainer import bench_input
from trainer.bench_input import bottleneck, bottleneck_sentence, figures_of, figures_text

pytest.importorskip("tensorflow")

from trainer.commands import bench_stages
from trainer.commands.bench_stages import Speed, measure, stage_streams
from trainer.training import summary

KEYS = {
    "stages", "images_per_second", "decode_limit_images_per_second", "ratio_to_limit",
    "bottleneck", "bottleneck_share", "busy_cores", "memory_bytes", "data", "split", "records",
    "batch_size", "pictures", "augment", "augment_on", "fast_order", "threads", "cores",
}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "shards"
    return make_data_set(folder, {"train": 40, "odd": 9})


@pytest.fixture
def hasty(monkeypatch):
    """No warming up: the figures say nothing, but they are there at once."""
    monkeypatch.setattr(bench_stages, "WARM_UP_SEC", 0.0)
    monkeypatch.setattr(bench_stages, "ROUNDS", 1)
    monkeypatch.setattr(summary, "MAX_IDLE_WAITS", 1)


def figures_for(capsys, *arguments: object) -> dict:
    assert bench_input.main([*map(str, arguments), "--seconds", "0.01", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("added", "stage", "share"),
    [
        ({"read": 10, "decode": 60, "augment": 20, "batch": 10}, "decode", 0.6),
        ({"read": 50, "decode": 30, "batch": 20}, "read", 0.5),
        # The crop saves decoding: together they take 40 of 60.
        ({"read": 20, "decode": 50, "augment": -10}, "decode", 40 / 60),
        # A row that is faster than the one above by chance adds nothing.
        ({"read": 20, "parse": -5, "decode": 60}, "decode", 0.75),
    ],
)
def test_the_bottleneck_adds_most(added, stage, share):
    totals = itertools.accumulate(added.values())
    speeds = {name: Speed(1e6 / usec, usec) for name, usec in zip(added, totals, strict=True)}
    found, its_share = bottleneck(speeds)
    assert found == stage
    assert its_share == pytest.approx(share)


def test_figures_compare_the_whole_reader_with_the_limit():
    speeds = {"read": Speed(50_000, 20), "decode": Speed(5_000, 390), "batch": Speed(4_800, 400)}
    figures = figures_of(speeds, Speed(5_000, 380))
    assert figures["images_per_second"] == 4_800
    assert figures["ratio_to_limit"] == 0.96
    assert figures["bottleneck"] == "decode"
    assert figures["busy_cores"] == pytest.approx(4_800 * 400 / 1e6)
    assert [s["added_cpu_microseconds"] for s in figures["stages"]] == [20, 370, 10]


@pytest.mark.parametrize(
    ("busy", "cores", "threads", "said"),
    [
        (1.9, 2, 2, "bottleneck: decode, 80% of the time per image, with 1.9 of 2 cores"),
        (0.9, 8, 1, "with 0.9 of 1 cores at work"),
        (0.8, 2, 2, "with only 0.8 of 2 cores at work the reader waited for storage"),
    ],
)
def test_the_bottleneck_sentence_tells_idle_cores(busy, cores, threads, said):
    figures = {"busy_cores": busy, "cores": cores, "threads": threads, "bottleneck": "decode",
               "bottleneck_share": 0.8}  # fmt: skip
    assert said in bottleneck_sentence(figures)


@pytest.mark.usefixtures("hasty")
def test_json_is_one_object(shards, capsys):
    figures = figures_for(capsys, "--data", shards, "--batch_size", 8, "--augment_on", "host")
    assert set(figures) == KEYS
    stages = [stage["stage"] for stage in figures["stages"]]
    assert stages == ["read", "parse", "decode", "augment", "batch"]
    assert all(stage["images_per_second"] > 0 for stage in figures["stages"])
    assert figures["images_per_second"] == figures["stages"][-1]["images_per_second"]
    assert figures["pictures"] == [64, 64, 3]
    assert figures["memory_bytes"]["shuffle buffer"] > 0


@pytest.mark.usefixtures("hasty")
def test_options_change_what_is_measured(shards, capsys):
    figures = figures_for(
        capsys, "--data", shards, "--split", "odd", "--batch_size", 4, "--image_size", 48,
        "--augment_on", "device", "--threads", 1, "--fast_order",
    )  # fmt: skip
    assert [stage["stage"] for stage in figures["stages"]] == ["read", "parse", "decode", "batch"]
    # Shipped to the device as large as they are.
    assert figures["pictures"] == [64, 64, 3]
    assert (figures["split"], figures["records"], figures["batch_size"]) == ("odd", 9, 4)
    assert (figures["threads"], figures["fast_order"]) == (1, True)


@pytest.mark.usefixtures("hasty")
def test_the_table_has_the_stages_and_the_limit(shards, capsys):
    assert bench_input.main(["--data", str(shards), "--seconds", "0.01", "--augment", "none"]) == 0
    said = capsys.readouterr().out
    for expected in ("reader up to  images/s", "\ndecode", "decode limit:", "bottleneck: ",
                     "memory, estimated: ", "40 records, batches of 32"):  # fmt: skip
        assert expected in said
    assert "\naugment" not in said


def test_the_table_says_where_pictures_are_augmented():
    speeds = {"read": Speed(50_000, 20), "batch": Speed(5_000, 390)}
    figures = figures_of(speeds, Speed(5_000, 380)) | {
        "data": "D", "split": "train", "records": 9, "batch_size": 4, "pictures": [8, 8, 3],
        "augment": "light", "augment_on": "device", "fast_order": False, "threads": 2,
        "cores": 2, "memory_bytes": {"cache": 0, "shuffle buffer": 25_000_000},
    }  # fmt: skip
    said = figures_text(figures)
    assert "augmentation light on the device" in said
    assert "memory, estimated: 25 MB (shuffle buffer 25)" in said


@pytest.fixture(scope="module")
def streams(shards):
    from trainer.augment.augmentation import make_augmentation
    from trainer.config import DataConfig, TrainConfig
    from trainer.dataset.open import open_inputs

    inputs = open_inputs(TrainConfig(DataConfig(str(shards)), "", batch_size=8))
    image = inputs.dataset.image
    augmentation = make_augmentation(
        "light", "host", image=image, size=(64, 64), seed=3, num_classes=3
    )
    return stage_streams(inputs.training, inputs.read_options, 3, 8, inputs.model, augmentation)


def test_every_stage_reads_the_records_that_training_reads(streams):
    batches = {name: next(iter(stream)) for name, stream in streams.items()}
    whole = batches["batch"]
    _, (_, record) = batches["read"]
    np.testing.assert_array_equal(record, whole["record"])
    np.testing.assert_array_equal(batches["parse"][2], whole["label"])
    np.testing.assert_array_equal(batches["augment"][0], whole["inputs"]["image"])
    assert not np.array_equal(batches["decode"][0], whole["inputs"]["image"])


def test_the_limit_makes_the_pictures_of_the_reader(streams):
    limit, whole = iter(streams["limit"]), iter(streams["batch"])
    for _ in range(3):
        np.testing.assert_array_equal(next(limit), next(whole)["inputs"]["image"])


def test_a_corrupt_record_is_one_sentence(tmp_path, capsys):
    broken = make_data_set(tmp_path / "broken", {"train": 20}, num_shards=2)
    path = min(broken.glob("*.tfrecord"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))
    assert bench_input.main(["--data", str(broken), "--batch_size", "4"]) == 2
    said = capsys.readouterr().err
    assert path.name in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seconds", "0"], "--seconds received 0.0; expected a number above 0"),
        (["--split", "all"], "--split received 'all'; expected one of"),
        (["--batch_size", "41"], "--batch_size received 41"),
        (["--augment", "strong", "--batch_size", "7"], "--batch_size received 7"),
        (["--epochs", "3"], "no flag of imageshards bench"),
    ],
)
def test_a_wrong_argument_is_one_sentence(shards, arguments, said, capsys):
    assert bench_input.main(["--data", str(shards), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_terminal_sees_how_far_it_is(monkeypatch, hasty):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)
    import tensorflow as tf

    streams = {name: tf.data.Dataset.from_tensors(0).repeat() for name in ("read", "parse")}
    measure(streams, 8, 1, 0.15)
    seen = terminal.getvalue()
    assert re.search(r"read [\d,]+ images/s: .* 3/4 \[", seen), seen
