"""Benchmarks that compare the trainer's reader with hardware limits and with other readers."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Callable, Mapping

from benchmarks import inputs
from benchmarks.cases import SHARDS, Settings
from benchmarks.measure import BenchmarkError, remove, run_module
from benchmarks.outcome import Figure, Outcome, medians
from benchmarks.reader_kinds import BATCH, SIZE, SLOW_READ_SEC, pixel_folder
from benchmarks.reader_rounds import Window, in_turn

CLASSES = 2
_WINDOWS_PER_ROUND = 3
# In a small dataset, streams share pieces.
_FEW_RECORDS = 1_111
_COLUMNS = ("images/s", "CPU us/image")

_HOST, _DEVICE = "trainer, crop on the host", "trainer, crop on the device"


def photos(s: Settings) -> pathlib.Path:
    """Returns a folder of raw photos with one folder per class."""
    root = s.work / f"links_to_{_sources(s)[0].parent.name}"
    return inputs.linked_folders(_sources(s), root, s.records, CLASSES)


def shards(s: Settings) -> pathlib.Path:
    """Returns a dataset of these photos with 256 px.

    The first call builds the dataset; later calls reuse the dataset.
    """
    source = photos(s)
    target = s.work / f"shards_of_{_sources(s)[0].parent.name}-{s.records}"
    if not (target / "manifest.json").exists():
        remove(target)
        run_module(
            "beam_pipeline", "--input", source, "--output", target, "--image_size", 256,
            "--splits", "train=1", "--num_shards", f"train={min(SHARDS, s.records)}",
            log=s.log,
        )  # fmt: skip
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    found = manifest["splits"]["train"]["num_records"]
    if found != s.records:
        raise BenchmarkError(f"{target} holds {found} records, not {s.records}; remove the folder")
    for path in target.glob("*.tfrecord"):
        path.read_bytes()  # The reading brings the file into the page cache.
    return target


def measured(s: Settings, kinds: Mapping[str, str]) -> dict[str, list[Window]]:
    """Measures the reader of each side in turn."""
    arguments = ("--data", str(shards(s)), "--raw", str(photos(s)))
    rounds = _WINDOWS_PER_ROUND * s.rounds
    return in_turn(kinds, arguments, s.work, rounds, s.window_seconds)


def speed_rows(found: Mapping[str, list[Window]]) -> dict[str, tuple[float, ...]]:
    """Returns the median rate and the median CPU time of each side."""
    return {
        side: medians([(window.images_per_second, window.cpu_usec) for window in windows])
        for side, windows in found.items()
    }


def faster(ours: list[Window], theirs: list[Window]) -> tuple[float, ...]:
    """Returns for each window the ratio of our rate to their rate."""
    return tuple(
        our.images_per_second / their.images_per_second
        for our, their in zip(ours, theirs, strict=True)
    )


def cheaper(ours: list[Window], theirs: list[Window]) -> tuple[float, ...]:
    """Returns for each window the ratio of their CPU time per image to our CPU time.

    CPU time stays comparable while other programs run on the host.
    """
    return tuple(their.cpu_usec / our.cpu_usec for our, their in zip(ours, theirs, strict=True))


def also(what: str, ratios: tuple[float, ...]) -> str:
    """Formats a ratio without a goal."""
    return f"{what}: {statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"


def reader_host_crop(s: Settings) -> Outcome:
    """Compares the reader, with random-resized crop and flip, with crops and flips alone."""
    found = measured(s, {
        _HOST: "trainer_host",
        "crops and flips from memory": "limit_crops",
    })  # fmt: skip
    ours, limit = found.values()
    return Outcome(
        "reader_host_crop", f"{_of_pictures(s)}, random-resized crop to {SIZE[0]} px and flip",
        _COLUMNS, speed_rows(found),
        (Figure("reader as a share of the limit, by CPU time", cheaper(ours, limit), 0.95),),
        ("the limit decodes, crops, resizes and flips JPEGs of the same shards on all cores; its "
         "crop windows have the same distribution",
         also("by the clock", faster(ours, limit))),
    )  # fmt: skip


def reader_records(s: Settings) -> Outcome:
    """Measures the reading of records without decoding, beside libjpeg-turbo's decoding."""
    few = dataclasses.replace(s, records=min(_FEW_RECORDS, s.records))
    kinds = {"records": "records", "libjpeg-turbo in memory": "turbo"}
    found = {
        f"{side} of {size.records:,}": windows
        for size in (s, few)
        for side, windows in measured(size, kinds).items()
    }
    figures = (
        Figure(side, tuple(window.cpu_usec for window in windows), 20, False)
        for side, windows in found.items()
        if side.startswith("records")
    )
    return Outcome(
        "reader_records", f"serialized records of 256 px, shuffled, in batches of {BATCH}",
        _COLUMNS, speed_rows(found), tuple(figures),
        ("the figures are CPU us a record",),
    )  # fmt: skip


def reader_device_crop(s: Settings) -> Outcome:
    """Compares the reader, decoding only, with libjpeg-turbo on JPEGs in memory."""
    found = measured(s, {
        _DEVICE: "trainer_device",
        "libjpeg-turbo in memory": "turbo",
    })  # fmt: skip
    ours, limit = found.values()
    return Outcome(
        "reader_device_crop", f"{_of_pictures(s)}, decoded whole", _COLUMNS, speed_rows(found),
        (Figure("reader as a share of the limit, by CPU time", cheaper(ours, limit), 0.9),),
        ("libjpeg-turbo runs on all cores through simplejpeg, with exact DCT and upsampling; it "
         "does not read, shuffle, parse or batch",
         also("by the clock", faster(ours, limit))),
    )  # fmt: skip


def reader_vs_raw_files(s: Settings) -> Outcome:
    """Compares the reader with Keras on a folder of photos, the usual first choice."""
    found = measured(s, {
        _HOST: "trainer_host", _DEVICE: "trainer_device",
        "image_dataset_from_directory": "keras_raw",
    })  # fmt: skip
    host, device, raw = found.values()
    return Outcome(
        "reader_vs_raw_files",
        f"{s.records:,} photos to batches of {BATCH} pictures of {SIZE[0]} px",
        _COLUMNS, speed_rows(found),
        (Figure("crop on the host, images/s as a ratio", faster(host, raw), 3),
         Figure("crop on the device, images/s as a ratio", faster(device, raw), 3)),
        ("image_dataset_from_directory augments nothing; with crops on the device, neither side "
         "includes the augmentation",
         also("by CPU time, host", cheaper(host, raw)),
         also("by CPU time, device", cheaper(device, raw))),
    )  # fmt: skip


def reader_vs_tfds(s: Settings) -> Outcome:
    """Compares the reader with a careful use of TensorFlow Datasets on the same shards."""
    found = measured(s, {
        _HOST: "trainer_host",
        "as_dataset, SkipDecoding, same crop": "tfds",
    })  # fmt: skip
    ours, tfds = found.values()
    return Outcome(
        "reader_vs_tfds", f"{_of_pictures(s)}, random-resized crop to {SIZE[0]} px and flip",
        _COLUMNS, speed_rows(found),
        (Figure("by CPU time, as a ratio", cheaper(ours, tfds), 1.3),),
        ("as_dataset also shuffles, but its order is not reproducible",
         also("by the clock", faster(ours, tfds))),
    )  # fmt: skip


def reader_options(s: Settings) -> Outcome:
    """Compares the plain reader with a slow disk and with deterministic operations."""
    found = measured(s, {
        _HOST: "trainer_host",
        f"the same, {1e3 * SLOW_READ_SEC:g} ms per read": "slow_disk",
        "the same, --deterministic": "deterministic",
    })  # fmt: skip
    plain, slow, same = found.values()
    return Outcome(
        "reader_options", f"{_of_pictures(s)}, random-resized crop to {SIZE[0]} px and flip",
        _COLUMNS, speed_rows(found),
        (Figure("slow disk, images/s as a share", faster(slow, plain), 0.95),
         Figure("--deterministic, images/s as a share", faster(same, plain), 0.95)),
        (also("by CPU time, slow disk", cheaper(slow, plain)),
         also("by CPU time, --deterministic", cheaper(same, plain))),
    )  # fmt: skip


def pixels(s: Settings) -> Outcome:
    """Compares `--cache pixels` with decoding and with Keras's own cache."""
    data = shards(s)
    folder = pixel_folder(str(data))
    remove(pathlib.Path(folder))
    options = {"batch_size": BATCH, "image_size": SIZE[0], "cache": "pixels"}
    options["cache_folder"] = folder
    first = run_module("benchmarks.waits", data, json.dumps(options), 1, 1, log=s.log)
    line = next(one for one in first.output.splitlines() if one.startswith("{"))
    filled_sec = json.loads(line)["startup_msec"] / 1e3
    found = measured(s, {
        f"{_HOST}, pixels": "pixels_host", f"{_DEVICE}, pixels": "pixels_device",
        _HOST: "trainer_host", _DEVICE: "trainer_device",
        "Keras, .cache(), same crop": "keras_cached", "Keras, same crop": "keras_crops",
    })  # fmt: skip
    host, device, host_jpegs, device_jpegs, cached, plain = found.values()
    return Outcome(
        "pixels", f"{_of_pictures(s)}, random-resized crop to {SIZE[0]} px and flip; later epochs",
        _COLUMNS, speed_rows(found),
        (Figure("device, against the reader of JPEGs, by CPU time",
                cheaper(device, device_jpegs), 10),
         Figure("host, against the reader of JPEGs, by CPU time", cheaper(host, host_jpegs), 2.5),
         Figure("crop on the host against Keras with .cache()", faster(host, cached), 1),
         Figure("crop on the host against Keras without", faster(host, plain), 3)),
        (f"the first epoch decodes {s.records / filled_sec:,.0f} images/s, in {filled_sec:.1f} s "
         "including TensorFlow's start",
         also("by the clock, device", faster(device, device_jpegs)),
         also("by the clock, host", faster(host, host_jpegs)),
         also("by CPU time, host against Keras with .cache()", cheaper(host, cached))),
    )  # fmt: skip


def _sources(s: Settings) -> list[pathlib.Path]:
    return s.pets or s.sources


def _of_pictures(s: Settings) -> str:
    return f"{s.records:,} records of 256 px in shuffled uint8 batches of {BATCH}"


READER_BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "reader_records": reader_records,
    "reader_host_crop": reader_host_crop,
    "reader_device_crop": reader_device_crop,
    "reader_vs_raw_files": reader_vs_raw_files,
    "reader_vs_tfds": reader_vs_tfds,
    "reader_options": reader_options,
    "pixels": pixels,
}
