"""Stand-ins for object stores on loopback, for tests: moto for s3://, an emulator for gs://.

    with store_server("s3") as server, server.environment():
        folder = server.bucket() + "/photos"          # s3://bucket-0/photos
        storage.write(folder + "/a.jpg", data)

Each is a process of its own on a free port, and ends with the process that started it.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from imageshards import storage
from tests.support.commands import ROOT

_BUCKETS = itertools.count()


class Asked(NamedTuple):
    """One request that reached the stand-in: its method, path with query, and answer (0: reset)."""

    method: str
    target: str
    status: int


class StoreServer:
    """A running stand-in, for processes that have its `environ` in their environment."""

    def __init__(self, scheme: str, port: int, https_port: int = 0):
        self.scheme = scheme
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.https_url = f"https://127.0.0.1:{https_port}"
        self.environ = {"STORAGE_EMULATOR_HOST": self.url}
        if scheme == "s3":
            keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
            self.environ = {"AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": "us-east-1", **keys}

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """This process, and those it starts, use the stand-in."""
        try:
            with mock.patch.dict(os.environ, self.environ):
                storage.forget_clients()
                yield
        finally:
            storage.forget_clients()

    def bucket(self, name: str = "") -> str:
        """Makes a bucket of a name that this process has not used; its URI, without a slash."""
        name = name or f"bucket-{next(_BUCKETS)}"
        if self.scheme == "s3":
            self._ask(name, method="PUT")
        else:
            self._ask("storage/v1/b?project=tests", {"name": name})
        return f"{self.scheme}://{name}"

    def set_latency(self, latency_sec: float) -> None:
        self._ask("__stand_in__/set", {"latency_sec": latency_sec})

    def set_replay(self, bucket: str) -> None:
        """Answers GETs in a bucket, where nothing is written any more, from memory."""
        name = bucket.partition("://")[2].partition("/")[0]
        self._ask("__stand_in__/set", {"replay": f"/{name}/"})

    def fail(self, kind: int | str, times: int = 1, matching: str = "", method: str = "") -> None:
        """The next requests of a method fail, those that have a text in their path or query.

        The kind is a status, `reset` (the connection is cut), `drop_answer` (cut after the request
        was done), `short` (cut within the answer), `hang`, or `no_range` (all is sent).
        """
        fault = {"kind": kind, "times": times, "matching": matching, "method": method}
        self._ask("__stand_in__/fail", fault)

    def heal(self) -> None:
        self._ask("__stand_in__/heal", {})

    def requests(self) -> list[Asked]:
        """What was asked since the last `clear`, faults included."""
        return [Asked(*asked) for asked in json.loads(self._ask("__stand_in__/log"))]

    def clear(self) -> None:
        self._ask("__stand_in__/clear", {})

    def _ask(self, path: str, body: Any = None, method: str | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data, kind, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return bytes(reply.read())


@contextlib.contextmanager
def store_server(scheme, cores=None, certificate=None) -> Iterator[StoreServer]:
    """Starts a stand-in for `s3` or `gs`, perhaps with `cores` of its own or a certificate."""
    more = [str(certificate.absolute())] if certificate else []
    environ = {k: v for k, v in os.environ.items() if k != "STORAGE_EMULATOR_HOST"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_front", scheme, *more], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ,
    )  # fmt: skip
    try:
        if cores is not None:
            os.sched_setaffinity(process.pid, cores)
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the stand-in for {scheme}:// did not start")
        yield StoreServer(scheme, *map(int, line.split()))
        process.stdin.close()
    finally:
        process.kill()
        process.wait(10)
