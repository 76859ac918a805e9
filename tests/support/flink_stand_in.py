"""What a Flink cluster answers: served on a free port of this host."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.support.http_stand_in import HttpStandIn, Reply, Request


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


class _Replies(HttpStandIn):
    def __init__(self, replies: Mapping[str, bytes | Callable[[], bytes] | None]):
        super().__init__()
        self._replies = replies

    def answer(self, request: Request) -> Reply | None:
        path, method = request.path, request.command
        asked = path if method == "GET" else f"{method} {path}"
        if asked not in self._replies:
            return Reply(404)
        reply = self._replies[asked]
        if reply is None:
            self.ended.wait(30)
            request.close_connection = True
            return None
        return Reply(200, reply() if callable(reply) else reply)


@contextlib.contextmanager
def serving(replies: Mapping[str, bytes | Callable[[], bytes] | None]) -> Iterator[str]:
    """host:port of a server with replies by path; None never replies, others are not found.

    Args:
        replies: Path, with its method unless that is GET → body.
    """
    with _Replies(replies) as server:
        yield f"localhost:{server.port}"


def flags(master: str) -> list[str]:
    """Flags of a build for a cluster; what stands for Java is there, and is never started."""
    launcher = "--job_server_java_launcher=sh"
    return ["--runner=FlinkRunner", f"--flink_master={master}", "--flink_version=2.2", launcher]
