"""What reading an image from a store costs a worker: its rate, and its processor time."""

from __future__ import annotations

import concurrent.futures
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from beam_pipeline.images.encode import encode_image
from beam_pipeline.images.read import REMOTE_DEPTH, read_images
from beam_pipeline.options import ImageOptions
from beam_pipeline.planning.refs import ImageRef
from benchmarks.cases import Settings
from benchmarks.measure import BenchmarkError
from benchmarks.outcome import Figure, Outcome, medians
from benchmarks.store_build import LATENCY_SEC, apart, upload
from imageshards import storage
from imageshards.storage.objects import split_uri

_IMAGES = 1_000
_Measured = tuple[float, float, float]


def store_read(s: Settings) -> Outcome:
    """Reading and encoding in one process: disk, gs:// and s3:// with latency."""
    images = min(s.images, _IMAGES)
    folder = s.linked(images, 10)
    rows: dict[str, tuple[float, ...]] = {}
    figures: list[Figure] = []
    for scheme, client in (("gs", "google-cloud-storage"), ("s3", "boto3")):
        with apart(scheme) as server:
            photos = server.bucket("photos") + "/in"
            upload(folder, photos, server)
            server.set_replay(photos)
            here, there = _refs(str(folder)), _refs(photos)
            sides: dict[str, Callable[[], None]] = {
                f"encode, disk (beside {scheme})": functools.partial(_encode, here),
                f"encode, {scheme}://": functools.partial(_encode, there),
                f"get only, {scheme}://": functools.partial(_get, there, storage.read),
                f"get only, {client}": functools.partial(_get, there, _library(scheme)),
            }
            _get(there, storage.read)  # everything has been answered once
            server.set_latency(LATENCY_SEC)
            found: dict[str, list[_Measured]] = {side: [] for side in sides}
            for _ in range(s.rounds):
                for side, run in sides.items():
                    found[side].append(_measured(run, images))
            rows |= {side: medians(rounds) for side, rounds in found.items()}
            disk, store, *_ = found.values()
            figures += [
                Figure(
                    f"rate, {scheme}:// / disk",
                    tuple(b[0] / a[0] for a, b in zip(disk, store, strict=True)),
                    0.8,
                ),
            ]
    return Outcome(
        "store_read",
        f"{images:,} images to 256 px in one process on one core, the store on another; "
        f"{LATENCY_SEC * 1e3:g} ms added to every request, {REMOTE_DEPTH} under way",
        ("images/s", "CPU ms per image", "retries"), rows, tuple(figures),
    )  # fmt: skip


def _refs(folder: str) -> list[ImageRef]:
    return [
        ImageRef(storage.name_of(found.path), found.path, "a", size_bytes=found.size_bytes)
        for found in storage.files_below(folder)
    ]


def _measured(run: Callable[[], None], images: int) -> _Measured:
    begun, cpu, retries = time.perf_counter(), time.process_time(), storage.counts().retries
    run()
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return images / seconds, 1e3 * cpu / images, float(storage.counts().retries - retries)


def _encode(refs: Sequence[ImageRef]) -> None:
    options = ImageOptions()
    for ref, data in read_images(refs, options.max_bytes):
        if not isinstance(data, bytes):
            raise BenchmarkError(f"{ref.uri} could not be read: {data}")
        encode_image(data, options)


def _get(refs: Sequence[ImageRef], get: Callable[[str], Any]) -> None:
    with concurrent.futures.ThreadPoolExecutor(REMOTE_DEPTH) as threads:
        for data in threads.map(get, (ref.uri for ref in refs)):
            if not data:
                raise BenchmarkError("an object could not be read")


def _library(scheme: str) -> Callable[[str], Any]:
    """The library's own way to get an object, with one client for all threads."""
    client: Any = storage.backend(f"{scheme}://")

    def boto3(uri: str) -> Any:
        bucket, key = split_uri(uri)
        return client._client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def google(uri: str) -> Any:
        bucket, name = split_uri(uri)
        return client._client.bucket(bucket).blob(name).download_as_bytes(checksum=None)

    return boto3 if scheme == "s3" else google
