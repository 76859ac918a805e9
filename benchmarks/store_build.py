"""Benchmarks of builds that read from, and write to, a store with a latency of 50 ms."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator

from benchmarks.cases import Settings, interleave, ratios
from benchmarks.measure import BenchmarkError, Usage, remove, run_module
from benchmarks.outcome import Figure, Outcome, medians
from imageshards import storage
from tests.support.store_servers import StoreServer, store_server

LATENCY_SEC = 0.05
_IMAGES = 6_000
_SHARDS = 4
_CLASSES = 10


def _build(s: Settings, images: int, source: str, output: str) -> Usage:
    """Builds a dataset on one core, checks the number of records and removes the dataset."""
    storage.delete_folder(output)
    usage = run_module(
        "beam_pipeline", "--input", source, "--output", output, "--image_size", 256,
        "--splits", "train=1", "--num_shards", f"train={_SHARDS}", "--no_report", log=s.log,
    )  # fmt: skip
    manifest = json.loads(storage.read(storage.join(output, "manifest.json")))
    found = manifest["splits"]["train"]["num_records"]
    if found != images:
        raise BenchmarkError(f"expected {images} records, found {found}:\n{usage.output}")
    storage.delete_folder(output)
    return usage


def _outcome(scheme: str, s: Settings) -> Outcome:
    """Compares a store with the local disk."""
    images = min(s.images, _IMAGES)
    with apart(scheme) as server:
        local, here = str(s.linked(images, _CLASSES)), str(s.output)
        photos = server.bucket("photos") + "/in"
        output = server.bucket("shards") + "/out"
        storage.copy_folder(local, photos)
        server.set_replay(photos)
        # The stand-in records its answers during this build and replays them afterwards.
        _build(s, images, photos, here)
        server.set_latency(LATENCY_SEC)
        sides = {
            "disk to disk": lambda: _build(s, images, local, here),
            "store to disk": lambda: _build(s, images, photos, here),
            "store to store": lambda: _build(s, images, photos, output),
        }
        found = interleave(sides, s.rounds)
    remove(s.output)
    rows = {side: medians([(images / u.seconds, u.seconds, u.cpu_seconds) for u in usages])
            for side, usages in found.items()}  # fmt: skip
    on_disk = found["disk to disk"]
    figures = [Figure(f"rate, {side} / disk to disk", ratios(found[side], on_disk), 0.8)
               for side in ("store to disk", "store to store")]  # fmt: skip
    return Outcome(
        f"{scheme}_build",
        f"{images:,} images, {_SHARDS} shards, the build on one core, the store on another; "
        f"{LATENCY_SEC * 1e3:g} ms added to every request",
        ("images/s", "seconds", "CPU s"), rows, tuple(figures),
    )  # fmt: skip


@contextlib.contextmanager
def apart(scheme: str) -> Iterator[StoreServer]:
    """Runs a stand-in on a separate core, because a real store is another host."""
    cores = sorted(os.sched_getaffinity(0))
    with store_server(scheme, cores={cores[-1]}) as server, server.environment():
        os.sched_setaffinity(0, {cores[0]})
        try:
            yield server
        finally:
            os.sched_setaffinity(0, cores)


STORE_BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "gcs_build": functools.partial(_outcome, "gs"),
    "s3_build": functools.partial(_outcome, "s3"),
}
