"""Serves a local folder as a gs:// bucket that is as slow as a real bucket.

    with slow_store(folder) as bucket:  # this process and its children can read the bucket
        ims.open(f"{bucket}/shards")

TensorFlow's own client reads from the store; `tests.support.google_front` explains how.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from unittest import mock

from benchmarks.measure import REPOSITORY, BenchmarkError
from imageshards import storage
from tests.support.google_front import GoogleFront
from tests.support.http_stand_in import Reply, Request, json_reply

LATENCY_SEC, SLOW_SEC = 0.05, 2.0
# Environment variable with the address of the store, for `counts` in any process.
VARIABLE = "BENCHMARK_STORE"


class SlowStore(GoogleFront):
    """Server that answers in `LATENCY_SEC`, and every `slow_every`-th request in `SLOW_SEC`.

    With `slow_every=0` no request is slow.
    """

    def __init__(self, root: pathlib.Path, folder: pathlib.Path, slow_every: int):
        super().__init__(0, folder)
        self._root, self._slow_every = root, slow_every
        self._numbers = itertools.count(1)
        self.sizes: list[int] = []

    def answer(self, request: Request) -> Reply | None:
        """Answers a request for an object, or for the numbers of requests and bytes so far."""
        if request.path == "/counts":
            return json_reply([len(self.sizes), sum(self.sizes)])
        return super().answer(request)

    def fetch(self, path: str, span: str) -> Reply:
        """Returns an object, a range of an object or its metadata; listings are empty."""
        number = next(self._numbers)
        is_slow = self._slow_every and number % self._slow_every == 0
        time.sleep(SLOW_SEC if is_slow else LATENCY_SEC)
        file = self._root / urllib.parse.unquote(path.partition("?")[0].partition("/o/")[2])
        if file == self._root:
            return json_reply({"items": []})
        if not file.is_file():
            return json_reply({"error": {"code": 404, "message": "No such object"}}, 404)
        size = file.stat().st_size
        if "alt=media" not in path:
            known = {"size": str(size), "generation": "1", "updated": "2026-01-01T00:00:00.000Z"}
            return json_reply({"name": file.name} | known)
        first, _, last = span.removeprefix("bytes=").partition("-")
        with file.open("rb") as opened:
            opened.seek(int(first or 0))
            body = opened.read(int(last) + 1 - int(first) if last else -1)
        self.sizes.append(len(body))
        where = f"bytes {first or 0}-{int(first or 0) + len(body) - 1}/{size}"
        return Reply(206 if span else 200, body, {"Content-Range": where if span else ""})


@contextlib.contextmanager
def slow_store(root: pathlib.Path, slow_every: int = 0) -> Iterator[str]:
    """Serves a folder as `gs://bench` to this process and its children.

    The store runs on a separate core, because a real store is another host. This process and its
    children use the other cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.slow_store", root, folder, str(slow_every)],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            os.sched_setaffinity(process.pid, {cores[-1]})
            os.sched_setaffinity(0, set(cores[:-1]) or set(cores))
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise BenchmarkError("the stand-in for gs:// did not start")
            with mock.patch.dict(os.environ, json.loads(line)):
                os.environ.pop("STORAGE_EMULATOR_HOST", None)
                storage.forget_clients()
                yield "gs://bench"
        finally:
            os.sched_setaffinity(0, cores)
            storage.forget_clients()
            process.kill()
            process.wait()


def counts() -> tuple[int, int]:
    """Returns the number of requests for contents so far, and the bytes of the answers."""
    with urllib.request.urlopen(os.environ[VARIABLE] + "/counts") as reply:
        requests, num_bytes = json.loads(reply.read())
    return requests, num_bytes


def main() -> None:
    """Prints the environment variables for clients, and serves until stdin ends."""
    root, folder = map(pathlib.Path, sys.argv[1:3])
    with SlowStore(root, folder, int(sys.argv[3])) as store:
        more = {VARIABLE: store.url, "CLOUDSDK_CONFIG": str(folder), "NO_GCE_CHECK": "true"}
        print(json.dumps(store.environ | more), flush=True)
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
