"""Beam's job server for Flink: Java, its jar, and the running server.

Beam's own client starts one for every pipeline without a time limit, keeps half a download for a
whole jar, takes the signal handler for Ctrl-C, and ends the server before a job can be cancelled
through it; a client that is killed leaves it behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import zipfile
from collections.abc import Iterator

import apache_beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)
from apache_beam.runners.portability import flink_runner
from apache_beam.utils import subprocess_server
from apache_beam.utils.subprocess_server import JavaJarServer

from imageshards.errors import UserError

JAVA_TIMEOUT_SEC = 20.0
# Between two pieces of a download, not for all of it.
DOWNLOAD_TIMEOUT_SEC = 20.0
START_TIMEOUT_SEC = 90.0
STOP_TIMEOUT_SEC = 10.0
_LOG_BYTES = 4000
# Flink 2 and its job servers are compiled for it; Flink 1.19 and 1.20 run on it, too.
_OLDEST_JAVA = 11
# The server ends with this process, however that ends: then the shell's input ends.
_GUARD = (
    'exec 3<&0; "$@" </dev/null & child=$!; '
    "{ cat <&3 >/dev/null; kill $child 2>/dev/null; } & "
    "wait $child"
)


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


def find_jar(options: PipelineOptions) -> str:
    """The job server's jar on this machine, downloaded into Beam's cache if it is not there.

    Also makes it the value of `--flink_job_server_jar`.

    Raises:
        UserError: There is no such file, or it cannot be downloaded.
    """
    flags = options.view_as(FlinkRunnerOptions)
    given = flags.flink_job_server_jar
    name = JavaJarServer.jar_name(
        f"beam-runners-flink-{flags.flink_version}-job-server", apache_beam.__version__
    )
    if given and not re.match(r"https?://", given):
        if not os.path.isfile(given):
            raise UserError(
                f"--flink_job_server_jar received {given!r}, which is no file; expected {name}, "
                "or its URL."
            )
        return str(given)
    cache = os.path.expanduser(
        options.view_as(JobServerOptions).jar_cache_dir or JavaJarServer.JAR_CACHE
    )
    url = flink_runner.FlinkJarJobServer(options).path_to_jar()
    if not os.path.isfile(os.path.join(cache, os.path.basename(url))):
        print(f"downloading {url} (about 150 MB)", file=sys.stderr)
    # Beam has no time-out for it, takes half a jar for a whole one, and warns at length.
    logging.getLogger(subprocess_server.__name__).setLevel(logging.ERROR)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SEC)
    try:
        path = JavaJarServer.local_jar(url, cache)
        if not zipfile.is_zipfile(path):
            os.remove(path)
            raise OSError("not all of it arrived")
    except (OSError, RuntimeError) as e:
        cause = e if isinstance(e, OSError) else e.__context__ or e
        raise UserError(
            f"Beam's job server for Flink {flags.flink_version} could not be downloaded from {url} "
            f"({refusal(cause, DOWNLOAD_TIMEOUT_SEC)}); put {name} into {cache}, or name it by "
            "--flink_job_server_jar."
        ) from e
    finally:
        socket.setdefaulttimeout(before)
    flags.flink_job_server_jar = path
    return str(path)


def refusal(e: BaseException, timeout_sec: float) -> str:
    """Why an address could not be read, in a few words."""
    if isinstance(e, urllib.error.HTTPError):
        return f"status {e.code}"
    if isinstance(e, TimeoutError) or isinstance(getattr(e, "reason", None), TimeoutError):
        return f"no reply within {timeout_sec:g} s"
    if isinstance(e, urllib.error.URLError):
        return str(getattr(e.reason, "strerror", None) or e.reason)
    if isinstance(e, OSError):
        return e.strerror or str(e) or type(e).__name__
    return "the reply is not Flink's"


@contextlib.contextmanager
def running(options: PipelineOptions) -> Iterator[None]:
    """A running job server, named by `--job_endpoint` meanwhile."""
    portable, own = options.view_as(PortableOptions), options.view_as(JobServerOptions)
    flags = options.view_as(FlinkRunnerOptions)
    with tempfile.TemporaryDirectory(prefix="imageshards-flink-") as folder:
        own.artifacts_dir = own.artifacts_dir or os.path.join(folder, "artifacts")
        # The server takes the master as Beam's client gives it: with a scheme.
        flags.flink_master = flink_runner.FlinkRunner.add_http_scheme(flags.flink_master)
        command, endpoint = flink_runner.FlinkJarJobServer(options).subprocess_cmd_and_endpoint()
        log = os.path.join(folder, "job-server.log")
        with open(log, "wb") as file:
            process = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", *map(str, command)],
                stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        try:
            _wait(process, endpoint, log)
            portable.job_endpoint = endpoint
            yield
        finally:
            portable.job_endpoint = None
            _end(process)


def _wait(process: subprocess.Popen[bytes], endpoint: str, log: str) -> None:
    host, _, port = endpoint.rpartition(":")
    deadline = time.monotonic() + START_TIMEOUT_SEC
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            return
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            why = f"ended with {process.returncode}" if ended else f"{START_TIMEOUT_SEC:g} s passed"
            with open(log, "rb") as file:
                text = file.read()[-_LOG_BYTES:].decode("utf-8", "replace")
            last = (text.strip().splitlines() or ["it said nothing"])[-1].strip()
            raise UserError(
                f"Beam's job server for Flink did not start ({why}: {last}); fix "
                "that, or start one yourself and name it by --job_endpoint."
            )
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_SEC)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_SEC)
