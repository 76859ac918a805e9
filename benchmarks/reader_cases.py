"""The benchmarks of the trainer's reader: against the limits, against other readers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import inputs
from benchmarks.cases import SHARDS, Settings
from benchmarks.measure import REPOSITORY, BenchmarkError, remove, run_module
from benchmarks.outcome import Figure, Outcome, medians
from benchmarks.reader_kinds import BATCH, SIZE, cores
from benchmarks.reader_probe import HOSTS
from benchmarks.reader_rounds import Window, in_turn
from scripts.local_hosts import free_addresses, host_environment

CLASSES = 2
_WINDOWS_PER_ROUND = 3
_COLUMNS = ("images/s", "CPU us/image")
# For what is read once only: listed so often, the shards hold some 160,000 records.
_COPIES_TO_SKIP = 20
# A measured process has more in it than the reader's data: code paged in, threads' stacks,
# what the allocator keeps.
_MEMORY_SLACK = 1.5

_HOST, _DEVICE = "trainer, crop on the host", "trainer, crop on the device"


def photos(s: Settings) -> pathlib.Path:
    """Raw photos in a folder per class."""
    root = s.work / f"links_to_{_sources(s)[0].parent.name}"
    return inputs.linked_folders(_sources(s), root, s.records, CLASSES)


def shards(s: Settings) -> pathlib.Path:
    """The same as a data set of 256 px, made once by the builder, then kept."""
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
        raise BenchmarkError(f"{target} holds {found} records, not {s.records}; remove it")
    for path in target.glob("*.tfrecord"):
        path.read_bytes()  # into the page cache
    return target


def measured(s: Settings, kinds: Mapping[str, str]) -> dict[str, list[Window]]:
    """Windows of readers by the names of their sides."""
    arguments = ("--data", str(shards(s)), "--raw", str(photos(s)))
    rounds = _WINDOWS_PER_ROUND * s.rounds
    return in_turn(kinds, arguments, s.work, rounds, s.window_seconds)


def speed_rows(found: Mapping[str, list[Window]]) -> dict[str, tuple[float, ...]]:
    """Medians of rates and of CPU times."""
    return {
        side: medians([(window.images_per_second, window.cpu_usec) for window in windows])
        for side, windows in found.items()
    }


def faster(ours: list[Window], theirs: list[Window]) -> tuple[float, ...]:
    """Window by window our rate as a multiple of theirs."""
    return tuple(
        our.images_per_second / their.images_per_second
        for our, their in zip(ours, theirs, strict=True)
    )


def best(*sides: list[Window]) -> list[Window]:
    """The side with the highest median rate."""
    return max(sides, key=lambda side: statistics.median(w.images_per_second for w in side))


def by_cpu_time(ours: list[Window], theirs: list[Window]) -> str:
    """The same ratio by CPU time: what counts where other programs were running, too."""
    usec = [statistics.median(window.cpu_usec for window in side) for side in (theirs, ours)]
    return f"by CPU time per image: {usec[0] / usec[1]:.3g}"


def reader_host_crop(s: Settings) -> Outcome:
    """Random-resized crop and flip in the reader, against the crops alone."""
    found = measured(s, {
        _HOST: "trainer_host",
        "crops from memory, by batch": "limit_by_batch",
        "crops from memory, by picture": "limit_by_picture",
        "crops and flips from memory": "limit_with_flip",
    })  # fmt: skip
    ours, by_batch, by_picture, flipped = found.values()
    limit = best(by_batch, by_picture)
    return Outcome(
        "reader_host_crop", f"{_of_pictures(s)}, random-resized crop to {SIZE[0]} px and flip",
        _COLUMNS, speed_rows(found),
        (Figure("reader as a share of crops from memory", faster(ours, limit), 0.95),
         Figure("reader as a share of crops and flips", faster(ours, flipped), 0.95)),
        ("the limits decode, crop and resize JPEGs of the same shards in windows of the same "
         "distribution, on all cores; only the last one flips half of the pictures, as the "
         "reader does",
         f"crops, {by_cpu_time(ours, limit)}; and flips, {by_cpu_time(ours, flipped)}"),
    )  # fmt: skip


def reader_device_crop(s: Settings) -> Outcome:
    """A reader that decodes only, against libjpeg-turbo in memory."""
    found = measured(s, {
        _DEVICE: "trainer_device",
        "libjpeg-turbo in memory, threads": "turbo_threads",
        "libjpeg-turbo in memory, processes": "turbo_processes",
    })  # fmt: skip
    ours, *turbo = found.values()
    limit = best(*turbo)
    return Outcome(
        "reader_device_crop", f"{_of_pictures(s)}, decoded whole", _COLUMNS, speed_rows(found),
        (Figure("reader as a share of the better one", faster(ours, limit), 0.8),),
        ("libjpeg-turbo by simplejpeg, exact DCT and upsampling, on all cores; it neither "
         "reads, shuffles, parses nor batches",
         by_cpu_time(ours, limit)),
    )  # fmt: skip


def reader_vs_raw_files(s: Settings) -> Outcome:
    """Against what people begin with: Keras on a folder of photos."""
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
        ("image_dataset_from_directory augments nothing: the device's share of the work is "
         "what is missing on both sides then",
         f"host, {by_cpu_time(host, raw)}; device, {by_cpu_time(device, raw)}"),
    )  # fmt: skip


def reader_vs_tfds(s: Settings) -> Outcome:
    """Against TensorFlow Datasets on the very same shards."""
    found = measured(s, {
        _HOST: "trainer_host",
        "as_dataset, SkipDecoding, same crop": "tfds_skip_decoding",
        "as_dataset, then crop": "tfds_default",
    })  # fmt: skip
    ours, skipping, default = found.values()
    return Outcome(
        "reader_vs_tfds", f"{_of_pictures(s)}, random-resized crop to {SIZE[0]} px and flip",
        _COLUMNS, speed_rows(found),
        (Figure("against SkipDecoding, images/s as a ratio", faster(ours, skipping), 1.5),
         Figure("against the default, images/s as a ratio", faster(ours, default), 1.5)),
        ("as_dataset is shuffled, too, but its order is not reproducible",
         f"SkipDecoding, {by_cpu_time(ours, skipping)}; default, {by_cpu_time(ours, default)}"),
    )  # fmt: skip


def reader_resume(s: Settings) -> Outcome:
    """How long a resumed run takes to its first batch."""
    total = _COPIES_TO_SKIP * s.records
    skipped = total * 15 // 16
    rounds = [_probe(s, "skip", _COPIES_TO_SKIP, skipped) for _ in range(s.rounds)]
    rates = [skipped / r["resume_seconds"] for r in rounds]
    return Outcome(
        "reader_resume", f"first record of a run, in a split of {total:,} records",
        ("seconds",),
        {"from the beginning": medians([(r["begin_seconds"],) for r in rounds]),
         f"after {skipped:,} records": medians([(r["resume_seconds"],) for r in rounds])},
        (Figure("skipped records/s, start-up included", tuple(rates), 150_000),),
        ("only the section of the pass that was interrupted is read and skipped",),
    )  # fmt: skip


def reader_memory(s: Settings) -> Outcome:
    """Memory of the reader, for a split and one four times as long."""
    records = 4 * s.records
    rounds: dict[int, list[dict[str, float]]] = {1: [], 4: []}
    for _ in range(s.rounds):
        for copies, found in rounds.items():
            found.append(_probe(s, "memory", copies, records))
    rows = {
        f"{copies * s.records:,} records": medians([
            (_grown(r) / 1e6, r["estimated_bytes"] / 1e6, r["peak_bytes"] / 1e6) for r in found
        ])
        for copies, found in rounds.items()
    }  # fmt: skip
    growth = [_grown(b) / _grown(a) for a, b in zip(*rounds.values(), strict=True)]
    estimated = [_grown(r) / r["estimated_bytes"] for found in rounds.values() for r in found]
    return Outcome(
        "reader_memory", f"a process that reads {records:,} records, crop on the host",
        ("MB more than before", "MB estimated", "RSS MB at its peak"), rows,
        (Figure("four times the records, as a ratio", tuple(growth), 1.15, at_least=False),
         Figure("measured against the estimate", tuple(estimated), _MEMORY_SLACK,
                at_least=False)),
        ("the estimate is what `imageshards bench` and `--dry_run` print",),
    )  # fmt: skip


def hosts(s: Settings) -> Outcome:
    """Two hosts of one core each, against one process with both."""
    if cores() < 2:
        raise BenchmarkError("two hosts of one core each need two cores")
    s = dataclasses.replace(s, records=min(s.records, 2_400))  # each run begins anew
    rounds = [
        (_trained(s, "one", 1, 1), _trained(s, "replicas", 1, 2), _trained(s, "hosts", 2, 1))
        for _ in range(s.rounds)
    ]
    ratios = tuple(of_hosts / max(of_process) for *of_process, of_hosts in rounds)
    costs = [_probe(s, "hosts", _COPIES_TO_SKIP, 4 * s.records) for _ in range(s.rounds)]
    one, two, hosts_rate = medians(rounds)
    share, of_8, of_64 = medians([[cost[f"{count}"] for count in HOSTS] for cost in costs])
    return Outcome(
        "hosts", f"the small CNN on {_of_pictures(s)}, two cores in all", ("images/s",),
        {"one process": (one,), "one process, two replicas": (two,), "two hosts": (hosts_rate,)},
        (Figure("two hosts as a share of the better process", ratios, 0.9),),
        (f"the reader takes {share:.0f} us CPU for a record that it decodes; on one of 8 hosts "
         f"{of_8:.1f} us for a record of the global batch, on one of 64 {of_64:.1f} us: that is "
         "what reading the order costs, on every host",),
    )  # fmt: skip


def _trained(s: Settings, name: str, hosts: int, replicas: int) -> float:
    """Images per second of a run's second epoch, each host on its own cores."""
    output = s.work / f"hosts-{name}"
    remove(output)
    every = sorted(os.sched_getaffinity(0))[:2]
    addresses = free_addresses(hosts)
    running = []
    for index in range(hosts):
        mine = every if hosts == 1 else every[index : index + 1]
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "trainer", "--data", str(shards(s)), "--output",
                 str(output), "--validation_split", "none", "--image_size", "96", "--epochs", "2",
                 "--batch_size", str(BATCH), "--replicas", str(replicas), "--cluster", "tf_config"],
                env={**os.environ, **host_environment(addresses, index)},
                preexec_fn=functools.partial(os.sched_setaffinity, 0, mine),
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
            )
        )  # fmt: skip
    for process in running:
        said = process.communicate()[1]
        if process.returncode:
            raise BenchmarkError(f"a host ended with {process.returncode}:\n{said}")
    last = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return float(json.loads(last)["images_per_second"])


def _sources(s: Settings) -> list[pathlib.Path]:
    return s.pets or s.sources


def _grown(found: Mapping[str, float]) -> float:
    return found["peak_bytes"] - found["before_bytes"]


def _probe(s: Settings, what: str, copies: int, records: int) -> dict[str, float]:
    usage = run_module("benchmarks.reader_probe", what, "--data", shards(s), "--copies", copies,
                       "--records", records, log=s.log)  # fmt: skip
    lines = [line for line in usage.output.splitlines() if line.startswith("{")]
    if not lines:
        raise BenchmarkError(f"no figures:\n{usage.output}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _of_pictures(s: Settings) -> str:
    return f"{s.records:,} records of 256 px in shuffled uint8 batches of {BATCH}"


READER_BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "reader_host_crop": reader_host_crop,
    "reader_device_crop": reader_device_crop,
    "reader_vs_raw_files": reader_vs_raw_files,
    "reader_vs_tfds": reader_vs_tfds,
    "reader_resume": reader_resume,
    "reader_memory": reader_memory,
    "hosts": hosts,
}
