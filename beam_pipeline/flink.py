"""What can be known of a Flink cluster before a job is submitted to it.

`python -m beam_pipeline.flink` fetches Beam's job server for a version of Flink.

A job needs a master that answers, free task slots, and, unless a job server runs already, Java
and the job server's jar for the cluster's version. Each of them missing is one sentence here; on
its own Beam waits, or downloads without a time limit, or fails minutes later inside the cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.utils.subprocess_server import JavaJarServer

from imageshards.errors import UserError

# Masters that stand for a cluster inside the job server's own process.
EMBEDDED = ("[local]", "[auto]", "[collection]")

REST_TIMEOUT_SEC = 5.0
JAVA_TIMEOUT_SEC = 20.0
# Between two pieces of a download, not for all of it.
DOWNLOAD_TIMEOUT_SEC = 20.0

_BLOCK_BYTES = 1 << 20
# Flink 2 and its job servers are compiled for it; Flink 1.19 and 1.20 run on it, too.
_OLDEST_JAVA = 11


class Overview(NamedTuple):
    """What a cluster says of itself.

    Attributes:
        version: Major and minor version, "2.2".
        task_managers: Running TaskManagers.
        slots, free_slots: Their task slots, and those no job has taken.
    """

    version: str
    task_managers: int
    slots: int
    free_slots: int

    @property
    def slots_of_one(self) -> int:
        """Task slots of the largest TaskManager, if they are alike."""
        return -(-self.slots // max(1, self.task_managers))


def is_address(master: str) -> bool:
    """Whether a master is a cluster's, not one inside the job server."""
    return master.strip() not in EMBEDDED


def overview(master: str) -> Overview:
    """Asks a cluster's REST interface.

    Raises:
        UserError: It does not answer in time, or what answers is no Flink.
    """
    request = urllib.request.Request(f"{url_of(master)}/overview")
    try:
        with open_url(request, REST_TIMEOUT_SEC) as reply:
            told = json.loads(reply.read(_BLOCK_BYTES))
        return Overview(
            ".".join(str(told["flink-version"]).split(".")[:2]),
            int(told["taskmanagers"]),
            int(told["slots-total"]),
            int(told["slots-available"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise no_flink(master, e) from e


def url_of(master: str) -> str:
    """A master's address with its scheme."""
    url = master.strip().rstrip("/")
    return url if re.match(r"https?://", url) else f"http://{url}"


def no_flink(master: str, e: Exception) -> UserError:
    """The sentence for a master that does not answer as one."""
    return UserError(
        f"--flink_master received {master!r}, where no Flink answers "
        f"({_reason(e, REST_TIMEOUT_SEC)}); expected the address of the JobManager's REST "
        "interface, for example localhost:8081: start the cluster (deploy/flink) or fix the "
        "address."
    )


def _reason(e: Exception, timeout_sec: float) -> str:
    if isinstance(e, urllib.error.HTTPError):
        return f"status {e.code}"
    if isinstance(e, TimeoutError) or isinstance(getattr(e, "reason", None), TimeoutError):
        return f"no reply within {timeout_sec:g} s"
    if isinstance(e, urllib.error.URLError):
        return str(getattr(e.reason, "strerror", None) or e.reason)
    if isinstance(e, OSError):
        return e.strerror or str(e) or type(e).__name__
    return "the reply is not Flink's"


def open_url(request: urllib.request.Request, timeout_sec: float) -> Any:
    """A reply, by way of the environment's proxy unless it comes from this host."""
    host = urllib.parse.urlsplit(request.full_url).hostname or ""
    # A proxy that the environment names cannot know this machine's own services.
    here = host == "localhost" or host == "::1" or host.startswith("127.")
    handlers = [urllib.request.ProxyHandler({})] if here else []
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout_sec)


def preflight(options: PipelineOptions) -> None:
    """Checks, before anything is submitted, what `--runner FlinkRunner` needs.

    Raises:
        UserError: The master does not answer or has another version, Java or the job server's
            jar is missing.
    """
    flink = options.view_as(FlinkRunnerOptions)
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint:
        return  # that job server, not this host, talks to the master
    if is_address(flink.flink_master):
        found = overview(flink.flink_master)
        if found.version != flink.flink_version:
            raise UserError(
                f"--flink_version received {flink.flink_version}, but the cluster at "
                f"{flink.flink_master} runs Flink {found.version}; expected the same version: "
                f"leave the flag out, or give one of {', '.join(flink.PUBLISHED_FLINK_VERSIONS)} "
                "and a cluster of it."
            )
    if not flink.flink_submit_uber_jar:
        check_java(options.view_as(JobServerOptions).job_server_java_launcher)
    job_server_jar(options)


def check_java(launcher: str) -> None:
    """Raises `UserError` unless a Java that can run the job server is there."""
    remedy = (
        f"expected Java {_OLDEST_JAVA} or later: install one (for example openjdk-17-jre-headless)"
        ", or name it by --job_server_java_launcher."
    )
    path = shutil.which(launcher)
    if path is None:
        raise UserError(
            f"--runner FlinkRunner starts Beam's job server with {launcher!r}, which is not "
            f"here; {remedy}"
        )
    try:
        said = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_SEC
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UserError(f"{path!r} does not run ({type(e).__name__}); {remedy}") from e
    version = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        shown = f"Java {version[1]}" if version else "no Java"
        raise UserError(f"{path!r} is {shown}; {remedy}")


def job_server_jar(options: PipelineOptions) -> str:
    """The job server's jar on this machine, downloaded into Beam's cache if it is not there.

    Also makes it the value of `--flink_job_server_jar`.

    Raises:
        UserError: There is no such file, or it cannot be downloaded.
    """
    flink = options.view_as(FlinkRunnerOptions)
    given = flink.flink_job_server_jar
    cache = options.view_as(JobServerOptions).jar_cache_dir or JavaJarServer.JAR_CACHE
    url = given or JavaJarServer.path_to_beam_jar(
        f":runners:flink:{flink.flink_version}:job-server:shadowJar"
    )
    if not re.match(r"https?://", url):
        if not os.path.isfile(url):
            raise UserError(
                f"--flink_job_server_jar received {given!r}, which is no file; expected "
                f"{jar_name(flink.flink_version)}, or its URL."
            )
        path = url
    else:
        path = os.path.join(os.path.expanduser(cache), os.path.basename(url))
        if not os.path.isfile(path):
            _download(url, path, flink.flink_version)
    flink.flink_job_server_jar = path
    return path


def jar_name(flink_version: str) -> str:
    """File name of Beam's job server for a version of Flink."""
    return JavaJarServer.jar_name(
        f"beam-runners-flink-{flink_version}-job-server", apache_beam.__version__
    )


def _download(url: str, path: str, flink_version: str) -> None:
    temporary = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open_url(urllib.request.Request(url), DOWNLOAD_TIMEOUT_SEC) as reply:
            size_bytes = int(reply.headers.get("Content-Length") or 0)
            print(f"downloading {url} ({size_bytes / 1e6:.0f} MB)", file=sys.stderr)
            with open(temporary, "wb") as file:
                while block := reply.read(_BLOCK_BYTES):
                    file.write(block)
                written = file.tell()
        if size_bytes and written != size_bytes:
            raise OSError(f"{written} of {size_bytes} bytes arrived")
        os.replace(temporary, path)
    except OSError as e:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise UserError(
            f"Beam's job server for Flink {flink_version} could not be downloaded from {url} "
            f"({_reason(e, DOWNLOAD_TIMEOUT_SEC)}); put "
            f"{jar_name(flink_version)} into {os.path.dirname(path)}, or name it by "
            "--flink_job_server_jar."
        ) from e


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the path of the job server's jar; 2, and one sentence, when it cannot be had."""
    versions = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline.flink", description="Fetches Beam's job server for Flink."
    )
    parser.add_argument("--flink_version", choices=versions, default=versions[-1])
    parser.add_argument("--jar_cache_dir", help="folder for it (default: Beam's own)")
    args = parser.parse_args(argv)
    given = [f"--{name}={value}" for name, value in vars(args).items() if value]
    try:
        print(job_server_jar(PipelineOptions(given)))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
