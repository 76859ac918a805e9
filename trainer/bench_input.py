"""How fast a data set can be read, and how long a model would wait for it: `imageshards bench`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

from imageshards.commands.command_line import Parser
from imageshards.commands.options import Option, add_options, check_options
from imageshards.storage import place
from imageshards.storage.concurrency import available_cores
from imageshards.text import counted, wrapped
from trainer.augment.augmentation import check_pairs, resolve_augment_on
from trainer.commands import console
from trainer.commands.flags import pick, read_config
from trainer.config import ReadConfig
from trainer.dataset.manifest import find_split
from trainer.dataset.open import open_dataset
from trainer.imports import quiet_import
from trainer.reader.batches import TrainingData, open_data

PROGRAM = "imageshards bench"
_WAITS = ("median", "p99", "p99.9", "max")

_EPILOG = (
    "The reader is the one that trains. Without --accelerator_ms its batches are taken as fast as "
    "they come; with it a stand-in of an accelerator takes so long for each, while no core is "
    "used, and the reader begins so that a pass ends in the midst. Decoding and augmentation are "
    "inside, that on the device, too: until the augmented batch is there the accelerator waits. "
    "The JSON object: images_per_second, cpu_microseconds (of all threads, an image), busy_cores, "
    "utilization (time computing / time running, as MLPerf Storage counts it), startup_msec (the "
    "first batch, which no other figure holds), wait_msec (median, p99, p99.9, max of a batch; a "
    "p99.9 wants a thousand of them), pass_ends (how many were met) and pass_end_msec (the longest "
    "wait there), memory_bytes (an estimate), and what was measured. --trace_folder writes a trace "
    "of TensorFlow's profiler, which has the time of every stage: pip install "
    "tensorboard-plugin-profile xprof, then tensorboard --logdir FOLDER."
)


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """What is measured, besides the data and how it is read."""

    # fmt: off
    split: Annotated[str | None, Option(
        "split to read (default: train or training)", metavar="NAME")] = None
    seconds: Annotated[float, Option("how long is measured", above=0, metavar="S")] = 5.0
    accelerator_ms: Annotated[float, Option(
        "what a stand-in of an accelerator takes for each batch, in ms", least=0, metavar="MS",
    )] = 0.0
    trace_folder: Annotated[str | None, Option(
        "writes a trace of TensorFlow's profiler there", place=place, metavar="DIR")] = None
    json: Annotated[bool, Option("prints one JSON object instead")] = False
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, as `console.run` does."""
    return console.run(PROGRAM, lambda: _bench(make_parser().parse_args(argv)), prints_result=True)


def make_parser() -> Parser:
    """The parser of `imageshards bench`."""
    parser = Parser(
        prog=PROGRAM,
        description="Measures how fast a data set can be read; trains nothing.",
        epilog=_EPILOG,
    )
    names = ["data", "records_root", "mix", "batch_size", "image_size", "augment", "augment_on"]
    names += ["seed", "target", "classes", "where", "balance", "inputs", "sequence_length"]
    add_options(parser, ReadConfig, [*names, "cache", "cache_folder", "threads"])
    add_options(parser, BenchConfig)
    return parser


def _bench(args: argparse.Namespace) -> int:
    bench, config = BenchConfig(**pick(vars(args), BenchConfig)), read_config(vars(args))
    if bench.split:
        find_split(open_dataset(config), "--split", bench.split)
    config = dataclasses.replace(config, train_split=bench.split, validation_split="none")
    described, _ = open_data(config)
    check_pairs(config.augment, config.batch_size, 1, described.mixes)
    figures = measured(described, bench)
    print(json.dumps(figures, allow_nan=False) if bench.json else figures_text(figures))
    return 0


def measured(described: TrainingData, bench: BenchConfig) -> dict[str, Any]:
    """Figures of the reader that `imageshards train` would use, as JSON values."""
    with quiet_import():
        import numpy as np

        from trainer.models import strategy
        from trainer.reader.pipeline import PREFETCH_BATCHES, memory_bytes
    augment_on = resolve_augment_on(described.augment_on, strategy.gpu_count())
    described = dataclasses.replace(described, augment_on=augment_on)
    subset, options, batch_size = described.subset, described.read_options, described.batch_size
    steps = int(bench.seconds * 1e3 / bench.accelerator_ms) if bench.accelerator_ms else 0
    begin = max(0, described.steps_per_epoch - 2 - steps // 2) if steps else 0
    # What was read ahead while nobody waited is not measured.
    ahead = 0 if steps else PREFETCH_BATCHES + options.threads
    startup_sec, waits_sec, passed_sec, cpu_sec = _timed(described, bench, begin, ahead)
    images, waits_msec = len(waits_sec) * batch_size, 1e3 * np.array(waits_sec)
    percentiles = np.percentile(waits_msec, [50, 99, 99.9, 100])
    numbers = begin + 1 + ahead + np.arange(len(waits_sec) + 1)
    ends = np.flatnonzero(np.diff(numbers * batch_size // subset.num_records))
    # The batch in which a pass ends, and the next one.
    at_ends = waits_msec[np.minimum([ends, ends + 1], len(waits_sec) - 1)]
    computing_sec = len(waits_sec) * bench.accelerator_ms / 1e3
    return {
        "images_per_second": round(images / passed_sec, 1),
        "cpu_microseconds": round(1e6 * cpu_sec / images, 1),
        "busy_cores": round(cpu_sec / passed_sec, 2),
        "utilization": round(computing_sec / passed_sec, 4) if bench.accelerator_ms else None,
        "startup_msec": round(1e3 * startup_sec, 1),
        "wait_msec": dict(zip(_WAITS, np.round(percentiles, 2).tolist(), strict=True)),
        "pass_ends": len(ends),
        "pass_end_msec": round(float(at_ends.max()), 2) if len(ends) else None,
        "accelerator_msec": bench.accelerator_ms,
        "memory_bytes": dict(memory_bytes(described)),
        "data": subset.dataset.data,
        "split": subset.split.name,
        "records": subset.num_records,
        "batch_size": batch_size,
        "pictures": [*described.augmentation.reader_size, subset.dataset.image.channels],
        "augment": described.augment,
        "augment_on": augment_on,
        "threads": options.threads,
        "cores": available_cores(),
    }


def _timed(
    described: TrainingData, bench: BenchConfig, begin: int, ahead: int
) -> tuple[float, list[float], float, float]:
    """Seconds that the first batch took; after it and `ahead` others, seconds that each was
    waited for, of all together, and of CPU time."""
    import tensorflow as tf

    from trainer.reader.broken_records import explain
    from trainer.reader.find_broken import find_broken
    from trainer.reader.stream import distributed

    waits_sec: list[float] = []
    folder, device = bench.trace_folder, described.augmentation.device
    traced = tf.profiler.experimental.Profile(folder) if folder else contextlib.nullcontext()
    augment = device and tf.function(device, autograph=False)

    def next_batch() -> None:
        batch = next(batches)
        if augment is not None:
            augment(batch)
            tf.test.experimental.sync_devices()

    try:
        created_sec = time.perf_counter()
        strategy = tf.distribute.get_strategy()
        batches = iter(distributed(strategy, lambda slices: described.batches(begin, slices)))
        next_batch()
        startup_sec = time.perf_counter() - created_sec
        for _ in range(ahead):
            next_batch()
        with traced:
            cpu_sec, begun_sec = time.process_time(), time.perf_counter()
            while (passed_sec := time.perf_counter() - begun_sec) < bench.seconds:
                # Like a step on a GPU it holds neither a core nor Python's lock.
                time.sleep(bench.accelerator_ms / 1e3)
                asked_sec = time.perf_counter()
                next_batch()
                waits_sec.append(time.perf_counter() - asked_sec)
            cpu_sec = time.process_time() - cpu_sec
    except tf.errors.OpError as e:
        raise explain(e, described.subset, find_broken(described.subset)) from e
    return startup_sec, waits_sec, passed_sec, cpu_sec


def figures_text(figures: dict[str, Any]) -> str:
    """The figures as they are printed."""
    height_px, width_px, channels = figures["pictures"]
    where = f" on the {figures['augment_on']}" if figures["augment"] != "none" else ""
    memory = figures["memory_bytes"]
    parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in memory.items())
    waits = [f"{name} {msec:,.1f} ms" for name, msec in figures["wait_msec"].items()]
    if figures["pass_ends"]:
        waits.append(f"where a pass ended at most {figures['pass_end_msec']:,.1f} ms")
    lines = [
        f"{figures['data']}, split {figures['split']}: {counted(figures['records'], 'record')}, "
        f"batches of {figures['batch_size']}, pictures of {height_px}x{width_px}x{channels} px, "
        f"augmentation {figures['augment']}{where}",
        f"{figures['images_per_second']:,.0f} images/s, {figures['cpu_microseconds']:,.0f} CPU us "
        f"an image, {figures['busy_cores']:.1f} of {counted(figures['cores'], 'core')} at work",
        f"the first batch: {figures['startup_msec'] / 1e3:,.1f} s",
        f"waiting for a batch: {', '.join(waits)}",
        f"memory, estimated: {sum(memory.values()) / 1e6:,.0f} MB ({parts})",
    ]
    if figures["utilization"] is not None:
        lines.insert(2, f"an accelerator of {figures['accelerator_msec']:g} ms a batch would be "
                     f"at work {figures['utilization']:.1%} of the time")  # fmt: skip
    return "\n".join(map(wrapped, lines))


if __name__ == "__main__":
    sys.exit(main())
