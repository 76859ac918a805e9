"""What a Flink cluster, or a place with jars, answers: served on a free port of this host."""

from __future__ import annotations

import contextlib
import http.server
import json
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import apache_beam


def overview(
    version: str = "2.2.1", task_managers: int = 2, slots: int = 8, free: int | None = None
) -> bytes:
    """`/overview` of Flink's REST interface."""
    told = {
        "taskmanagers": task_managers,
        "slots-total": slots,
        "slots-available": slots if free is None else free,
        "jobs-running": 0,
        "flink-version": version,
    }
    return json.dumps(told).encode()


class Jobs:
    """`/jobs` of Flink's REST interface: jobs that run until they are cancelled."""

    def __init__(self, **names: str):
        self.states = dict.fromkeys(names, "RUNNING")
        self.names = names
        self.cancelled: list[str] = []

    def overview(self) -> bytes:
        """All jobs, those that were cancelled too."""
        jobs = [
            {"jid": job, "name": name, "state": self.states[job]}
            for job, name in self.names.items()
        ]
        return json.dumps({"jobs": jobs}).encode()

    def _cancel(self, job: str) -> bytes:
        self.cancelled.append(job)
        self.states[job] = "CANCELED"
        return b"{}"

    @property
    def replies(self) -> dict[str, Any]:
        """For `serving`."""
        cancels = {
            f"PATCH /jobs/{job}?mode=cancel": lambda job=job: self._cancel(job)
            for job in self.names
        }
        return {"/overview": overview(), "/jobs/overview": self.overview, **cancels}


@contextlib.contextmanager
def serving(
    replies: Mapping[str, bytes | Callable[[], bytes] | None], length: int | None = None
) -> Iterator[str]:
    """host:port of a server with replies by path; None never replies, others are not found.

    Args:
        replies: Path, with its method unless that is GET → body.
        length: What `Content-Length` says, if not the truth.
    """
    done = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def _reply(self, asked: str) -> None:
            reply = replies.get(asked, b"")
            if reply is None:
                done.wait(30)
                return
            body = reply() if callable(reply) else reply
            self.send_response(200 if asked in replies else 404)
            self.send_header("Content-Length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._reply(self.path)

        def do_PATCH(self) -> None:
            self._reply(f"PATCH {self.path}")

        def log_message(self, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"localhost:{server.server_address[1]}"
        finally:
            done.set()
            server.shutdown()
            thread.join()


def fake_java(folder: pathlib.Path, then: str) -> pathlib.Path:
    """A `java` that says its version, and runs a shell command for a jar."""
    path = folder / "java"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then echo \'openjdk version "17.0.1"\' >&2; exit 0; fi\n'
        f"{then}\n"
    )
    path.chmod(0o755)
    return path


def flags(folder: pathlib.Path, master: str, then: str = "exit 0") -> list[str]:
    """Flags of a build for a cluster, with a `java` that runs a shell command for the jar."""
    jar = folder / f"beam-runners-flink-2.2-job-server-{apache_beam.__version__}.jar"
    jar.write_bytes(b"")
    return [
        "--runner=FlinkRunner",
        f"--flink_master={master}",
        "--flink_version=2.2",
        f"--flink_job_server_jar={jar}",
        f"--job_server_java_launcher={fake_java(folder, then)}",
    ]
