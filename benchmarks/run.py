"""Runs the benchmarks of `make bench` and reports which promises hold.

Trust the ratios: both sides of a ratio do the same work in the same minutes. Absolute figures
depend on the host. A missed goal is a measurement and not an error, so the exit code stays 0.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Sequence

from benchmarks import cases, inputs
from benchmarks.cases import Settings
from benchmarks.feeding_cases import FEEDING_BENCHMARKS
from benchmarks.measure import REPOSITORY, BenchmarkError
from benchmarks.reader_cases import READER_BENCHMARKS
from benchmarks.store_build import STORE_BENCHMARKS

BENCHMARKS = cases.BENCHMARKS | READER_BENCHMARKS | FEEDING_BENCHMARKS | STORE_BENCHMARKS

_LIBRARIES = (
    "apache-beam", "tensorflow", "tensorflow-transform", "keras", "tensorflow-datasets",
    "simplejpeg", "pillow", "protobuf",
)  # fmt: skip


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; an unknown benchmark is a usage error."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description="Measures speed and memory; a round takes half an hour on two cores.",
    )
    add = parser.add_argument
    add("--images", type=int, default=16_000, help="images in a build (default: 16000)")
    add("--only", default="", metavar="NAME,...",
        help=f"some of {', '.join(BENCHMARKS)} (default: all)")  # fmt: skip
    add("--rounds", type=int, default=3, help="runs of each side (default: 3)")
    add(
        "--data",
        type=pathlib.Path,
        default=REPOSITORY.parent / "shared" / "data",
        metavar="DIR",
        help="folder with real photos in imagenet_sample/ and dogs_vs_cats/ "
        "(default: ../shared/data)",
    )
    add(
        "--work",
        type=pathlib.Path,
        default=REPOSITORY / "bench_output",
        metavar="DIR",
        help="folder for results and for inputs, which later runs reuse (default: bench_output)",
    )
    args = parser.parse_args(argv)
    args.only = [name.strip() for name in args.only.split(",") if name.strip()]
    unknown = sorted(set(args.only) - set(BENCHMARKS))
    if unknown:
        parser.error(f"--only received {unknown[0]!r}; expected any of {', '.join(BENCHMARKS)}.")
    # The smallest builds have a sixteenth of the images, at least one for each shard.
    for flag, least in (("images", 16 * cases.SHARDS), ("rounds", 1)):
        if getattr(args, flag) < least:
            parser.error(f"--{flag} received {getattr(args, flag)}; expected at least {least}.")
    return args


def machine() -> dict[str, object]:
    """Describes the host and the versions of the libraries."""
    model = "unknown processor"
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": model,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmarks; returns 0 unless a command failed."""
    args = parse(sys.argv[1:] if argv is None else argv)
    args.work.mkdir(parents=True, exist_ok=True)
    found: dict[str, object] = {"machine": machine(), "outcomes": []}
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    sources, real = inputs.photos(args.data, args.work.resolve())
    if not real:
        print(f"{args.data / inputs.SAMPLE} is missing: the benchmarks use drawn photos")
    work = args.work.resolve()
    pets, _ = inputs.photos(args.data, work, inputs.PETS)
    settings = Settings(work, sources, images=args.images, rounds=args.rounds, pets=pets)
    outcomes: list[dict[str, object]] = []
    for name, benchmark in BENCHMARKS.items():
        if args.only and name not in args.only:
            continue
        begun, load = time.monotonic(), os.getloadavg()[0]
        try:
            outcome = benchmark(settings)
        except BenchmarkError as e:
            print(f"error: {name}: {e}", file=sys.stderr)
            return 1
        print(f"\n{outcome.text()}", flush=True)
        print(f"  (load {load:.1f} at the start; {time.monotonic() - begun:,.0f} s in total)")
        outcomes.append(outcome.to_dict() | {"real_photos": real, "load": load})
        found["outcomes"] = outcomes
        results = args.work / "results.json"
        results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\nresults: {args.work / 'results.json'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
