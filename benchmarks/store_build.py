"""Builds whose originals, and then whose shards, are in a store that answers in 50 ms."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import urllib.parse
import urllib.request
from collections.abc import Iterator

from benchmarks.cases import Settings, interleave
from benchmarks.measure import BenchmarkError, Usage, remove, run_module
from benchmarks.outcome import Figure, Outcome, medians
from imageshards import storage
from tests.support.store_servers import StoreServer, store_server

LATENCY_SEC = 0.05
_IMAGES = 6_000
_SHARDS = 4
_CLASSES = 10


@dataclasses.dataclass
class _Case:
    """Where the photos are, on this machine and in a store."""

    settings: Settings
    images: int
    here: pathlib.Path
    there: str
    server: StoreServer

    def build(self, source: str, output: str) -> Usage:
        """One build on one core, to be compared with others of the same work."""
        storage.delete_folder(output)
        usage = run_module(
            "beam_pipeline", "--input", source, "--output", output, "--image_size", 256,
            "--splits", "train=1", "--num_shards", f"train={_SHARDS}", "--no_report",
            log=self.settings.log,
        )  # fmt: skip
        manifest = json.loads(storage.read(storage.join(output, "manifest.json")))
        found = manifest["splits"]["train"]["num_records"]
        if found != self.images:
            raise BenchmarkError(f"{found} records of {self.images} images:\n{usage.output}")
        storage.delete_folder(output)
        return usage


def gcs_build(s: Settings) -> Outcome:
    """`gs://` against this machine's disk."""
    return _outcome("gs", s)


def s3_build(s: Settings) -> Outcome:
    """`s3://` against this machine's disk."""
    return _outcome("s3", s)


def _outcome(scheme: str, s: Settings) -> Outcome:
    images = min(s.images, _IMAGES)
    with apart(scheme) as server:
        case = _Case(s, images, s.linked(images, _CLASSES), "", server)
        photos = server.bucket("photos") + "/in"
        output = server.bucket("shards") + "/out"
        upload(case.here, photos, server)
        server.set_replay(photos)
        here = str(s.output)
        case.build(photos, here)  # the stand-in has answered everything once
        server.set_latency(LATENCY_SEC)
        sides = {
            "disk to disk": lambda: case.build(str(case.here), here),
            "store to disk": lambda: case.build(photos, here),
            "store to store": lambda: case.build(photos, output),
        }
        found = interleave(sides, s.rounds)
    remove(s.output)
    rows = {
        side: medians([_row(usage, images) for usage in usages]) for side, usages in found.items()
    }
    local = found["disk to disk"]
    figures = [
        Figure(
            f"rate, {side} / disk to disk",
            tuple(b.seconds / a.seconds for a, b in zip(found[side], local, strict=True)),
            0.8,
        )
        for side in ("store to disk", "store to store")
    ]
    return Outcome(
        f"{scheme}_build",
        f"{images:,} images, {_SHARDS} shards, the build on one core, the store on another; "
        f"{LATENCY_SEC * 1e3:g} ms added to every request",
        ("images/s", "seconds", "CPU s"), rows, tuple(figures),
    )  # fmt: skip


def _row(usage: Usage, images: int) -> tuple[float, ...]:
    return images / usage.seconds, usage.seconds, usage.cpu_seconds


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


def upload(folder: pathlib.Path, target: str, server: StoreServer) -> None:
    """Copies the photos below a folder to a folder of a stand-in."""
    put = functools.partial(_put_gcs, server.url) if server.scheme == "gs" else storage.upload
    paths = sorted(path for path in folder.rglob("*.jpg"))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        names = [f"{target}/{path.relative_to(folder)}" for path in paths]
        list(threads.map(put, map(str, paths), names))


def _put_gcs(url: str, local_path: str, path: str) -> None:
    """An upload of bytes alone: of one with parts the emulator takes 20 ms to parse each."""
    bucket, _, name = path.removeprefix("gs://").partition("/")
    asked = urllib.parse.urlencode({"uploadType": "media", "name": name})
    request = urllib.request.Request(
        f"{url}/upload/storage/v1/b/{bucket}/o?{asked}",
        data=pathlib.Path(local_path).read_bytes(),
        headers={"Content-Type": "image/jpeg"},
    )
    with urllib.request.urlopen(request, timeout=60):
        pass


STORE_BENCHMARKS = {"gcs_build": gcs_build, "s3_build": s3_build}
