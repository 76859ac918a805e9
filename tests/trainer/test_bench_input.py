"""`imageshards bench`: what it measures is the reader that trains."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.target_sets import make_targets
from tests.support.trainer_data import make_data_set
from trainer import bench_input

pytest.importorskip("tensorflow")

KEYS = {
    "images_per_second", "cpu_microseconds", "busy_cores", "utilization", "startup_msec",
    "wait_msec", "pass_ends", "pass_end_msec", "accelerator_msec", "memory_bytes", "data", "split",
    "records", "batch_size", "pictures", "augment", "augment_on", "threads", "cores",
}  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "shards"
    return make_data_set(folder, {"train": 40, "odd": 9})


def said_for(capsys, *arguments: object) -> str:
    assert bench_input.main([*map(str, arguments), "--seconds", "0.05"]) == 0
    return capsys.readouterr().out


def figures_for(capsys, *arguments: object) -> dict:
    return json.loads(said_for(capsys, *arguments, "--json"))


def test_json_is_one_object_of_what_the_options_ask_for(shards, capsys):
    figures = figures_for(capsys, "--data", shards, "--batch_size", 8, "--augment_on", "host")
    assert set(figures) == KEYS
    assert figures["pictures"] == [64, 64, 3]
    assert figures["memory_bytes"]["pieces"] > 0
    assert figures["utilization"] is None and figures["startup_msec"] > 0
    assert list(figures["wait_msec"]) == ["median", "p99", "p99.9", "max"]

    figures = figures_for(
        capsys, "--data", shards, "--split", "odd", "--batch_size", 8, "--image_size", 48,
        "--augment_on", "device", "--threads", 1, "--accelerator_ms", 20,
    )  # fmt: skip
    assert figures["pictures"] == [64, 64, 3]  # shipped to the device as large as they are
    assert (figures["split"], figures["records"], figures["batch_size"]) == ("odd", 9, 8)
    assert figures["threads"] == 1
    # Of the time as it passes: what a step takes besides is waiting, nothing else.
    assert 0 < figures["utilization"] < 1
    assert figures["images_per_second"] == pytest.approx(8 / 0.02 * figures["utilization"], 1e-3)
    assert figures["pass_ends"] >= 1  # the second batch has the last of 9 records
    assert figures["wait_msec"]["max"] >= figures["pass_end_msec"] > 0


def test_sentences_say_what_was_measured_and_a_trace_is_written(shards, capsys, tmp_path):
    flags = ["--data", shards, "--accelerator_ms", 1, "--trace_folder", tmp_path / "trace"]
    flags += ["--augment", "light", "--augment_on", "device"]
    said = " ".join(said_for(capsys, *flags).split())
    assert "40 records, batches of 32" in said and "augmentation light on the device" in said
    assert re.search(r"an accelerator of 1 ms a batch would be at work [\d.]+% of the time", said)
    assert "the first batch: " in said and "where a pass ended at most " in said
    assert "waiting for a batch: median " in said and "memory, estimated: " in said
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seconds", "0"], "--seconds received 0.0; expected more than 0"),
        (["--accelerator_ms", "-1"], "--accelerator_ms received -1.0; expected at least 0"),
        (["--split", "all"], "--split received 'all'; expected one of"),
        (["--batch_size", "41"], "--batch_size received 41"),
        (["--augment", "strong", "--batch_size", "7"], "--batch_size received 7"),
        (["--epochs", "3"], "no flag of imageshards bench"),
    ],
)
def test_a_wrong_argument_is_one_sentence(shards, arguments, said, capsys):
    assert bench_input.main(["--data", str(shards), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_values_are_mixed_in_no_pairs(tmp_path, capsys):
    shards = make_targets(tmp_path / "set", {"train": 1})
    flags = ("--data", shards, "--target", "bright", "--augment", "strong", "--batch_size", 3)
    assert figures_for(capsys, *flags)["batch_size"] == 3
