"""What a Flink cluster tells by its REST interface: version, task slots, jobs. Needs no Beam."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from imageshards.errors import UserError

# Masters that stand for a cluster inside the job server's own process.
EMBEDDED = ("[local]", "[auto]", "[collection]")

REST_TIMEOUT_SEC = 5.0
CANCEL_TIMEOUT_SEC = 60.0

_ENDED = ("FINISHED", "FAILED", "CANCELED", "SUSPENDED")


class NoFlinkError(UserError):
    """No Flink answers at an address."""


class Overview(NamedTuple):
    """Version of a cluster, "2.2", running TaskManagers, their task slots and the free ones."""

    version: str
    task_managers: int
    slots: int
    free_slots: int


def is_address(master: str) -> bool:
    """Whether a master is a cluster's, not one inside the job server."""
    return master.strip() not in EMBEDDED


def overview(master: str) -> Overview:
    """Reads a cluster's version and task slots.

    Raises:
        NoFlinkError: It does not answer in time, or what answers is no Flink.
    """
    told = _ask(master, "/overview")
    try:
        return Overview(
            ".".join(str(told["flink-version"]).split(".")[:2]),
            int(told["taskmanagers"]),
            int(told["slots-total"]),
            int(told["slots-available"]),
        )
    except (ValueError, KeyError, TypeError) as e:
        raise _no_flink(master, "the reply is not Flink's") from e


def running_jobs(master: str, name: str) -> list[str]:
    """Ids of a cluster's jobs of a name that have not ended; none where there is no cluster.

    Raises:
        NoFlinkError: The cluster does not answer.
    """
    if not is_address(master):
        return []
    return [
        str(job["jid"])
        for job in _ask(master, "/jobs/overview").get("jobs", ())
        if job.get("name") == name and job.get("state") not in _ENDED
    ]


def cancel_jobs(master: str, name: str) -> None:
    """Cancels a cluster's jobs of a name and waits until they have ended.

    Raises:
        UserError: The cluster does not answer, or a job does not end in time.
    """
    found = running_jobs(master, name)
    for job in found:
        _ask(master, f"/jobs/{job}?mode=cancel", "PATCH")
    deadline = time.monotonic() + CANCEL_TIMEOUT_SEC
    while found and running_jobs(master, name):
        if time.monotonic() > deadline:
            raise UserError(
                f"the job {found[0]} at {master} was told to end but still runs after "
                f"{CANCEL_TIMEOUT_SEC:g} s; see the cluster's own pages there."
            )
        time.sleep(0.2)


def _ask(master: str, path: str, method: str = "GET") -> Any:
    """The reply of a cluster's REST interface."""
    url = (master if "://" in master else f"http://{master}").rstrip("/") + path
    host = urllib.parse.urlsplit(url).hostname or ""
    # A proxy that the environment names cannot know this machine's own services.
    here = host in ("localhost", "::1") or host.startswith("127.")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))
    try:
        request = urllib.request.Request(url, method=method)
        with opener.open(request, timeout=REST_TIMEOUT_SEC) as reply:
            return json.loads(reply.read() or b"{}")
    except (OSError, ValueError) as e:
        raise _no_flink(master, e) from e


def _no_flink(master: str, e: object) -> NoFlinkError:
    return NoFlinkError(
        f"--flink_master received {master!r}, where no Flink answers ({e}); expected the "
        "address of the JobManager's REST interface, for example localhost:8081: start the cluster "
        "(docs/howto/flink.md) or fix the address."
    )
