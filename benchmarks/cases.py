"""Benchmarks of the builder: each benchmark runs several sides in turn and compares the sides."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Callable, Mapping

from benchmarks import inputs
from benchmarks.measure import BenchmarkError, Usage, remove, run_module
from benchmarks.outcome import Figure, Outcome, medians

Side = Callable[[], Usage]

SHARDS = 64
GB = 1e9


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of the inputs and the number of rounds.

    Attributes:
        work: Folder for inputs (kept) and outputs (removed).
        sources: Photos that the inputs repeat by hard links.
        images: Number of images in a build. Builds of a sixteenth and of half of them give the CPU
            time of an image.
        memory_images: Numbers of images in the two builds of the benchmark `memory`.
        listed, folders: Number of files to list and plan, and number of their folders.
        rounds: Number of runs of each side.
        pets: Photos for the dataset of the readers; if empty, the dataset uses `sources`.
        records: Number of records in the dataset of the readers.
        window_seconds: Duration of one measurement of a reader; a round has three measurements.
    """

    work: pathlib.Path
    sources: list[pathlib.Path]
    images: int = 16_000
    memory_images: tuple[int, int] = (8_000, 64_000)
    listed: int = 1_281_167
    folders: int = 1_000
    rounds: int = 3
    pets: list[pathlib.Path] = dataclasses.field(default_factory=list)
    records: int = 8_000
    window_seconds: float = 3.0

    def linked(self, images: int, classes: int = 300) -> pathlib.Path:
        """Returns a folder with `images` images in class folders."""
        root = self.work / f"links_to_{self.sources[0].parent.name}"
        return inputs.linked_folders(self.sources, root, images, classes)

    @property
    def output(self) -> pathlib.Path:
        """Output folder of a measured command."""
        return self.work / "output"

    @property
    def log(self) -> pathlib.Path:
        """File for the printed output of a measured command."""
        return self.work / "command.log"


def interleave(sides: Mapping[str, Side], rounds: int) -> dict[str, list[Usage]]:
    """Runs the sides in turn, A B A B …, so that a slow minute of the host affects every side."""
    found: dict[str, list[Usage]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def ratios(ours: list[Usage], theirs: list[Usage]) -> tuple[float, ...]:
    """Returns for each round how many times faster our side did the same work."""
    return tuple(their.seconds / our.seconds for our, their in zip(ours, theirs, strict=True))


def _build(s: Settings, source: pathlib.Path, images: int, memory: bool = False,
           workers: int = 0, shards: int = SHARDS, output: pathlib.Path | None = None,
           pictures: tuple[str | int, ...] = ("--image_size", 256)) -> Usage:  # fmt: skip
    """Builds a dataset, and removes the dataset unless `output` names a folder for it."""
    made = output or s.output
    remove(made)
    usage = run_module(
        "beam_pipeline", "--input", source, "--output", made, *pictures,
        "--splits", "train=1", "--num_shards", f"train={shards}", "--direct_num_workers", workers,
        log=s.log, memory=memory,
    )  # fmt: skip
    manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
    _check(manifest["splits"]["train"]["num_records"], images, usage)
    if output is None:
        remove(made)
    return usage


def _loop(s: Settings, source: pathlib.Path, images: int) -> Usage:
    remove(s.output)
    usage = run_module(
        "benchmarks.plain_loop", "--input", source, "--output", s.output, "--num_shards", SHARDS,
        log=s.log,
    )  # fmt: skip
    _check(int(usage.output.split()[0]), images, usage)
    remove(s.output)
    return usage


def _check(found: int, expected: int, usage: Usage) -> None:
    if found != expected:
        raise BenchmarkError(f"expected {expected} records, found {found}:\n{usage.output}")


def _build_row(usages: list[Usage]) -> tuple[float, ...]:
    return medians([(u.seconds, u.cpu_seconds, u.main_cpu_seconds) for u in usages])


def _build_rows(found: dict[str, list[Usage]], images: int) -> dict[str, tuple[float, ...]]:
    rows = {side: _build_row(usages) for side, usages in found.items()}
    return {side: (images / row[0], *row) for side, row in rows.items()}


_BUILD_COLUMNS = ("images/s", "seconds", "CPU s", "CPU s of the main process")


def _of_build(images: int) -> str:
    return f"{images:,} images to 256 px, bicubic, quality 90, crop, {SHARDS} shards"


def build_vs_loop(s: Settings) -> Outcome:
    """Compares the builder with a plain loop that writes the same records.

    Two smaller builds give the CPU time of an image, and of a build besides its images.
    """
    small, half = s.images // 16, s.images // 2
    sides = {
        f"{name}, {images:,} images": functools.partial(side, s, s.linked(images), images)
        for images in (small, half, s.images)
        for name, side in (("beam_pipeline", _build), ("plain loop", _loop))
    }
    for warm_up in list(sides.values())[:2]:
        warm_up()
    found = interleave(sides, s.rounds)
    first, loops_first, second, loops_second, ours, loops = found.values()
    cpu = [b.cpu_seconds / a.cpu_seconds for a, b in zip(loops_first, first, strict=True)]
    of_image = [
        (b.cpu_seconds - a.cpu_seconds) / (d.cpu_seconds - c.cpu_seconds)
        for a, b, c, d in zip(first, second, loops_first, loops_second, strict=True)
    ]
    rows = {side: _build_row(usages) for side, usages in found.items()}
    return Outcome(
        "build_vs_loop", _of_build(s.images), _BUILD_COLUMNS[1:], rows,
        (Figure("images/s, as a ratio", ratios(ours, loops), 0.95),
         Figure(f"CPU time of an image, between {small:,} and {half:,} images, as a ratio",
                tuple(of_image), 1.04, at_least=False),
         Figure(f"CPU time of {small:,} images, as a ratio", tuple(cpu), 1.2, at_least=False)),
    )  # fmt: skip


def copy(s: Settings) -> Outcome:
    """Compares a build from an existing dataset with a build from the photos."""
    source, made = s.linked(s.images), s.work / "to_copy"
    _build(s, source, s.images, output=made)
    shards = SHARDS * 3 // 4
    sides = {
        "from a dataset": lambda: _build(s, made, s.images, shards=shards),
        "from photos": lambda: _build(s, source, s.images, shards=shards),
    }
    found = interleave(sides, s.rounds)
    remove(made)
    return Outcome(
        "copy", f"{s.images:,} images of 256 px from {SHARDS} shards into {shards} new shards",
        _BUILD_COLUMNS, _build_rows(found, s.images),
        (Figure("images/s, as a ratio", ratios(*found.values()), 5),),
    )  # fmt: skip


def original_bytes(s: Settings) -> Outcome:
    """Compares a build that copies JPEGs that need no change with a build that encodes them."""
    # None of these photos has a colour profile, for which a picture is encoded on both sides.
    source = dataclasses.replace(s, sources=s.pets or s.sources).linked(s.images)
    size = ("--resize_mode", "none")
    sides = {
        "copied": lambda: _build(s, source, s.images, pictures=size),
        "encoded": lambda: _build(s, source, s.images, pictures=(*size, "--quality", 90)),
    }
    found = interleave(sides, s.rounds)
    copied, encoded = found.values()
    cpu = [b.cpu_seconds / a.cpu_seconds for a, b in zip(copied, encoded, strict=True)]
    return Outcome(
        "original_bytes", f"{s.images:,} images in their own size, {SHARDS} shards",
        _BUILD_COLUMNS, _build_rows(found, s.images),
        (Figure("images/s, as a ratio", ratios(copied, encoded), 2),
         Figure("CPU time, as a ratio", tuple(cpu), 2)),
    )  # fmt: skip


def archives(s: Settings) -> Outcome:
    """Compares builds from one tar file and one Parquet file with a build from class folders."""
    source = s.linked(s.images)
    inputs_of = {
        "class folders": source,
        "one tar": inputs.packed(source, ".tar"),
        "one Parquet file": inputs.packed(source, ".parquet"),
    }
    sides = {name: functools.partial(_build, s, path, s.images) for name, path in inputs_of.items()}
    found = interleave(sides, s.rounds)
    folders, tar, table = found.values()
    return Outcome(
        "archives", _of_build(s.images), _BUILD_COLUMNS, _build_rows(found, s.images),
        (Figure("from a tar, images/s as a ratio", ratios(tar, folders), 0.95),
         Figure("from Parquet, images/s as a ratio", ratios(table, folders), 0.8)),
    )  # fmt: skip


def memory(s: Settings) -> Outcome:
    """Compares the peak memory of a build with the peak memory of a build eight times as large."""
    sides = {
        f"{images:,} images": functools.partial(_build, s, s.linked(images), images, memory=True)
        for images in s.memory_images
    }
    found = interleave(sides, max(1, s.rounds - 1))
    small, large = found.values()
    growth = [b.peak_rss_bytes / a.peak_rss_bytes for a, b in zip(small, large, strict=True)]
    return Outcome(
        "memory", "peak of the whole process tree during a build, sampled every 50 ms",
        ("RSS GB", "seconds"),
        {side: medians([(u.peak_rss_bytes / GB, u.seconds)
                        for u in usages]) for side, usages in found.items()},
        (Figure("RSS, as a ratio", tuple(growth), 1.15, at_least=False),),
        ("RSS counts a shared page once for every process",),
    )  # fmt: skip


def scaling(s: Settings) -> Outcome:
    """Compares a build with two workers with a build with one worker."""
    source = s.linked(s.images)
    sides = {
        "one worker": lambda: _build(s, source, s.images, workers=1),
        "two workers": lambda: _build(s, source, s.images, workers=2),
    }
    found = interleave(sides, s.rounds)
    one, two = found.values()
    return Outcome(
        "scaling", _of_build(s.images), _BUILD_COLUMNS, _build_rows(found, s.images),
        (Figure("two workers, images/s as a ratio", ratios(two, one), 1.9),),
    )  # fmt: skip


def listing(s: Settings) -> Outcome:
    """Measures how long it takes to list and plan as many files as ImageNet has."""
    source = s.linked(s.listed, s.folders)

    def plan_only() -> Usage:
        remove(s.output)
        usage = run_module(
            "beam_pipeline", "--input", source, "--splits", "train=0.9,validation=0.1",
            "--num_shards", "train=1024,validation=128", "--output", s.output, "--plan_only",
            log=s.log, memory=True,
        )  # fmt: skip
        row = r"^(?:train|validation)\s+[\d,]+\s+([\d,]+)"
        images = re.findall(row, usage.output, re.MULTILINE)
        _check(sum(int(n.replace(",", "")) for n in images), s.listed, usage)
        return usage

    usages = [plan_only() for _ in range(s.rounds)]
    seconds = tuple(u.seconds for u in usages)
    peaks = tuple(u.peak_rss_bytes / GB for u in usages)
    raw = [(u.seconds, u.cpu_seconds, u.peak_rss_bytes / GB) for u in usages]
    return Outcome(
        "listing", f"{s.listed:,} files in {s.folders:,} folders, listed and planned",
        ("seconds", "CPU s", "peak RSS GB"), {"--plan_only": medians(raw)},
        (Figure("seconds", seconds, 60, at_least=False),
         Figure("peak RSS in GB", peaks, 2.5, at_least=False)),
    )  # fmt: skip


BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "build_vs_loop": build_vs_loop,
    "archives": archives,
    "copy": copy,
    "original_bytes": original_bytes,
    "scaling": scaling,
    "memory": memory,
    "listing": listing,
}
