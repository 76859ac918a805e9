"""Checks before a job is submitted: do the servers answer, and does a worker see the data?"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc, beam_job_api_pb2

from beam_pipeline.inputs import layout
from beam_pipeline.runners import jobs, worker_check
from beam_pipeline.runners.flags import runner_name
from beam_pipeline.runners.runner import Build
from beam_pipeline.runners.worker_check import Probe
from beam_pipeline.versions import versions
from imageshards import storage
from imageshards.errors import UserError

CONNECT_TIMEOUT_SEC = 5.0
# From the submission of the small job to its end; an image may have to be downloaded for DOCKER.
ANSWER_TIMEOUT_SEC = {"DOCKER": 900.0, "": 120.0}
# A network folder shows a file of another host a while later.
_SEEN_TIMEOUT_SEC = 15.0
_START_SERVICE = "start the service (on this host: make job-service), or fix the address"
_START_POOL = "start the pool (make worker-pool), or fix the address"


def check_servers(options: PipelineOptions) -> None:
    """Whether job service and worker pool answer, as far as this machine can ask them.

    Raises:
        UserError: One does not.
    """
    check_endpoint(options)
    check_environment(options)


def check_endpoint(options: PipelineOptions) -> None:
    """Whether a job service answers at --job_endpoint.

    Raises:
        UserError: None does.
    """
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint:
        if _is_portable(options):
            raise UserError(
                "--job_endpoint is missing; expected host:port of a job service for --runner "
                "PortableRunner: start one on this host with make job-service."
            )
        return
    if endpoint == "embed":
        return
    with _explain_call_errors("--job_endpoint", endpoint, "job service", _START_SERVICE):
        with jobs.job_service(endpoint) as service:
            request = beam_job_api_pb2.DescribePipelineOptionsRequest()
            service.DescribePipelineOptions(request, timeout=CONNECT_TIMEOUT_SEC)


def check_environment(options: PipelineOptions) -> None:
    """Whether the workers that --environment_type asks for can be had.

    Raises:
        UserError: They cannot.
    """
    portable = options.view_as(PortableOptions)
    kind = (portable.environment_type or "").upper()
    if kind == "EXTERNAL":
        _check_pool(options)
    elif kind in ("", "DOCKER") and _is_portable(options):
        if is_here(portable.job_endpoint or "") and shutil.which("docker") is None:
            raise UserError(
                f"--environment_type received {kind or 'nothing'}, so every worker is a Docker "
                "container, and there is no docker on this host; expected EXTERNAL: start a pool "
                "with make worker-pool, and give --environment_type EXTERNAL "
                "--environment_config localhost:50000."
            )


def _is_portable(options: PipelineOptions) -> bool:
    return runner_name(options.view_as(StandardOptions).runner) == "portable"


def _check_pool(options: PipelineOptions) -> None:
    """A pool on this host is asked whether it is one."""
    if ":" not in _pool_address(options):
        raise UserError(
            f"--environment_config received {options.view_as(PortableOptions).environment_config!r}"
            " with --environment_type EXTERNAL; expected host:port of a worker pool: start one "
            "with make worker-pool."
        )
    address = pool_here(options)
    if not address:
        return
    with _explain_call_errors("--environment_config", address, "worker pool", _START_POOL):
        with grpc.insecure_channel(address) as channel:
            # Stops nothing: no worker has this name.
            beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel).StopWorker(
                beam_fn_api_pb2.StopWorkerRequest(worker_id=f"nobody-{uuid.uuid4().hex}"),
                timeout=CONNECT_TIMEOUT_SEC,
            )


@contextlib.contextmanager
def _explain_call_errors(flag: str, address: str, server: str, remedy: str) -> Iterator[None]:
    """Makes a sentence of what goes wrong in a call to a server."""
    try:
        reason = connection_error(address)
    except ValueError:
        raise UserError(f"{flag} received {address!r}; expected host:port.") from None
    if reason:
        raise UserError(
            f"{flag} received {address!r}, but no {server} listens there ({reason}); {remedy}."
        )
    try:
        yield
    except grpc.RpcError as e:
        code = e.code().name.lower().replace("_", " ")
        raise UserError(
            f"{flag} received {address!r}, where something listens that is no Beam {server} "
            f"({code}); {remedy}."
        ) from None


def is_here(address: str) -> bool:
    """Whether host:port is an address of this machine itself."""
    host = address.rpartition(":")[0].strip("[]")
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connection_error(address: str) -> str | None:
    """Why nothing can be reached at host:port; None if something can.

    Raises:
        ValueError: It is no host:port.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not 0 < int(port) < 65536:
        raise ValueError(address)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SEC):
            return None
    except TimeoutError:
        return f"no answer within {CONNECT_TIMEOUT_SEC:.0f} s"
    except OSError as e:
        return e.strerror or str(e)


def _pool_address(options: PipelineOptions) -> str:
    """host:port of the worker pool; empty if the environment is another or says none."""
    portable = options.view_as(PortableOptions)
    if (portable.environment_type or "").upper() != "EXTERNAL":
        return ""
    config = str(portable.environment_config or "")
    if not config.startswith("{"):
        return config
    try:
        return str(json.loads(config).get("url", ""))
    except ValueError:
        return ""


def pool_here(options: PipelineOptions) -> str:
    """The worker pool's address if it can be asked from here.

    A pool is looked for by the runner's hosts: `localhost` means this one only if the runner
    is here too.
    """
    address = _pool_address(options)
    service = options.view_as(PortableOptions).job_endpoint or ""
    here = is_here(address) and (not service or is_here(service))
    return address if here else ""


def make_probe(build: Build) -> Probe:
    """The probe for a build; `write_question` writes the file that the worker reads."""
    nonce = uuid.uuid4().hex
    return Probe(
        build.output,
        storage.join(build.staging, f"preflight-{nonce}.question"),
        nonce,
        storage.join(build.staging, f"preflight-{nonce}.answer"),
        layout.glob_root(build.input) if layout.is_glob(build.input) else build.input,
        versions(),
    )


def write_question(probe: Probe) -> None:
    """Writes the nonce that the worker reads into the staging folder."""
    storage.write(probe.question, probe.nonce)


def check_by_worker(
    build: Build, pipeline: beam.Pipeline, run: Callable[[beam.Pipeline, float], None]
) -> None:
    """Runs a small job whose worker looks at the build's paths, rights and versions.

    Args:
        build: What the worker will have to read and write.
        pipeline: An empty one.
        run: Runs it for so many seconds at most, or raises TimeoutError.

    Raises:
        UserError: The worker cannot do its part, or there is none.
    """
    kind = (pipeline.options.view_as(PortableOptions).environment_type or "").upper()
    timeout_sec = ANSWER_TIMEOUT_SEC.get(kind, ANSWER_TIMEOUT_SEC[""])
    probe = make_probe(build)
    pipeline | "CheckWorker" >> worker_check.CheckWorker(probe)
    try:
        write_question(probe)
        run(pipeline, timeout_sec)
        found = read_answer(probe)
    except RuntimeError as e:
        raise _explain(e) from e
    except TimeoutError:
        raise UserError(
            f"no worker answered within {timeout_sec:.0f} s (--environment_type {kind or 'unset'}"
            "); expected one to begin: see the logs of the job service and of the worker pool; "
            "the job was cancelled."
        ) from None
    finally:
        storage.delete([probe.question, probe.answer])
    if mismatch := worker_check.find_mismatch(probe, found):
        raise UserError(mismatch)


def read_answer(probe: Probe) -> dict[str, object]:
    deadline = time.monotonic() + _SEEN_TIMEOUT_SEC
    while True:
        try:
            found: dict[str, object] = json.loads(storage.read(probe.answer))
            return found
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                raise UserError(
                    f"a worker wrote to --output {probe.output!r}, and nothing of it arrived here; "
                    "expected a folder that this machine and every worker share: give a mounted "
                    "network folder or a gs:// or s3:// path."
                ) from None
            time.sleep(0.1)


def _explain(e: RuntimeError) -> UserError:
    """Why the small job failed."""
    text = str(e)
    if "No module named 'beam_pipeline" in text or "worker_check" in text and "Attr" in text:
        return UserError(
            "the workers' Python has no imageshards of this release; expected the same one as "
            "here: install it with its constraints.txt into the pool's environment and start the "
            "pool from there (make worker-pool)."
        )
    return UserError(
        f"a small job that only checks paths and versions failed ({last_line(text)}); expected a "
        "worker to answer: see the logs of the job service and of the worker pool."
    )


def last_line(text: str) -> str:
    """The line of a traceback with the error, shortened: Python's is the last, Go's the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    return lines[0 if any(line.startswith("goroutine ") for line in lines) else -1][:300]
