"""Builds whose originals, and then whose shards, are in a store that answers in 50 ms."""

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
    """One build on one core, to be compared with others of the same work."""
    storage.delete_folder(output)
    usage = run_module(
        "beam_pipeline", "--input", source, "--output", output, "--image_size", 256,
        "--splits", "train=1", "--num_shards", f"train={_SHARDS}", "--no_report", log=s.log,
    )  # fmt: skip
    manifest = json.loads(storage.read(storage.join(output, "manifest.json")))
    found = manifest["splits"]["train"]["num_records"]
    if found != images:
        raise BenchmarkError(f"{found} records of {images} images:\n{usage.output}")
    storage.delete_folder(output)
    return usage


def _outcome(scheme: str, s: Settings) -> Outcome:
    """A store against this machine's disk."""
    images = min(s.images, _IMAGES)
    with apart(scheme) as server:
        local, here = str(s.linked(images, _CLASSES)), str(s.output)
        photos = server.bucket("photos") + "/in"
        output = server.bucket("shards") + "/out"
        storage.copy_folder(local, photos)
        server.set_replay(photos)
        _build(s, images, photos, here)  # the stand-in has answered everything once
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
    """A stand-in on a core of its own, as a store is another machine."""
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
