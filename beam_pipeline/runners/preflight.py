"""Before a job is given to a remote runner: does everything answer, and see what we see?"""

from __future__ import annotations

import json
import shutil
import time
import uuid

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_job_api_pb2,
)

from beam_pipeline.inputs import folders
from beam_pipeline.runners import addresses, jobs, submit, worker_check
from beam_pipeline.runners import select as runners
from beam_pipeline.runners.select import Runner
from beam_pipeline.runners.worker_check import Probe
from beam_pipeline.versions import versions
from imageshards import storage
from imageshards.errors import UserError

# From giving the small job away to its end; an image may have to be downloaded for DOCKER.
ANSWER_TIMEOUT_SEC = {"DOCKER": 900.0, "": 120.0}
# A network folder shows a file of another host a while later.
_SEEN_TIMEOUT_SEC = 15.0


def check(runner: Runner, source_input: str, output: str, staging: str) -> None:
    """Checks that a remote runner can do this job, by a small one.

    On Dataflow, where a job takes minutes to start, the job itself begins with the check.

    Raises:
        UserError: It cannot; says what to do.
    """
    name = runners.kind(runner.options)
    check_servers(runner.options)
    if name == "dataflow":
        from beam_pipeline.runners import dataflow

        dataflow.preflight(runner.options, source_input, output)
    else:
        if name == "flink":
            from beam_pipeline import flink

            flink.preflight(runner.options)
        _ask_a_worker(runner, make_probe(source_input, output, staging))


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
        if runners.kind(options) == "portable":
            raise UserError(
                "--job_endpoint is missing; expected host:port of a job service for --runner "
                "PortableRunner: start one on this host with make job-service."
            )
        return
    if endpoint == "embed":
        return
    remedy = "start the service (on this host: make job-service), or fix the address"
    _connect("--job_endpoint", endpoint, "no job service listens there", remedy)
    try:
        with jobs.job_service(endpoint) as service:
            request = beam_job_api_pb2.DescribePipelineOptionsRequest()
            service.DescribePipelineOptions(request, timeout=addresses.CONNECT_TIMEOUT_SEC)
    except grpc.RpcError as e:
        raise UserError(
            f"--job_endpoint received {endpoint!r}, where something listens that is no Beam job "
            f"service ({_reason(e)}); {remedy}."
        ) from None


def check_environment(options: PipelineOptions) -> None:
    """Whether the workers that --environment_type asks for can be had.

    Raises:
        UserError: They cannot.
    """
    portable = options.view_as(PortableOptions)
    kind = (portable.environment_type or "").upper()
    if kind == "EXTERNAL":
        _check_pool(options)
    elif kind in ("", "DOCKER") and runners.kind(options) == "portable":
        here = addresses.is_here(portable.job_endpoint or "")
        if here and shutil.which("docker") is None:
            raise UserError(
                f"--environment_type received {kind or 'nothing'}, so every worker is a Docker "
                "container, and there is no docker on this host; expected EXTERNAL: start a pool "
                "with make worker-pool, and give --environment_type EXTERNAL "
                "--environment_config localhost:50000."
            )


def _check_pool(options: PipelineOptions) -> None:
    """Of a pool that is on this host it can be asked whether it is one."""
    if ":" not in addresses.pool_address(options):
        raise UserError(
            f"--environment_config received {options.view_as(PortableOptions).environment_config!r}"
            " with --environment_type EXTERNAL; expected host:port of a worker pool: start one "
            "with make worker-pool."
        )
    address = addresses.pool_here(options)
    if not address:
        return
    remedy = "start the pool (make worker-pool), or fix the address"
    _connect("--environment_config", address, "no worker pool listens there", remedy)
    try:
        with grpc.insecure_channel(address) as channel:
            # Stops nothing: no worker has this name.
            beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel).StopWorker(
                beam_fn_api_pb2.StopWorkerRequest(worker_id=f"nobody-{uuid.uuid4().hex}"),
                timeout=addresses.CONNECT_TIMEOUT_SEC,
            )
    except grpc.RpcError as e:
        raise UserError(
            f"--environment_config received {address!r}, where something listens that is no Beam "
            f"worker pool ({_reason(e)}); {remedy}."
        ) from None


def _connect(flag: str, address: str, problem: str, remedy: str) -> None:
    try:
        reason = addresses.refusal(address)
    except ValueError:
        raise UserError(f"{flag} received {address!r}; expected host:port.") from None
    if reason:
        raise UserError(f"{flag} received {address!r}, but {problem} ({reason}); {remedy}.")


def _reason(e: grpc.RpcError) -> str:
    return str(e.code().name.lower().replace("_", " "))


def make_probe(source_input: str, output: str, staging: str) -> Probe:
    """What a worker is asked; `ask` puts the question where it looks."""
    nonce = uuid.uuid4().hex
    return Probe(
        output,
        storage.join(staging, f"preflight-{nonce}.question"),
        nonce,
        storage.join(staging, f"preflight-{nonce}.answer"),
        folders.glob_root(source_input) if folders.is_glob(source_input) else source_input,
        versions(),
    )


def ask(probe: Probe) -> None:
    """Writes the question into the staging folder."""
    storage.write(probe.question, probe.nonce)


def _ask_a_worker(runner: Runner, probe: Probe) -> None:
    kind = (runner.options.view_as(PortableOptions).environment_type or "").upper()
    timeout_sec = ANSWER_TIMEOUT_SEC.get(kind, ANSWER_TIMEOUT_SEC[""])
    pipeline = beam.Pipeline(runner.runner, options=runner.options)
    pipeline | "CheckWorker" >> worker_check.CheckWorker(probe)
    try:
        ask(probe)
        submit.run_small(pipeline, runner, timeout_sec)
        found = _answer(probe)
    except RuntimeError as e:
        raise _explained(e) from e
    except TimeoutError:
        raise UserError(
            f"no worker answered within {timeout_sec:.0f} s (--environment_type {kind or 'unset'}"
            "); expected one to begin: see the logs of the job service and of the worker pool; "
            "the job was cancelled."
        ) from None
    finally:
        storage.delete([probe.question, probe.answer])
    if wrong := worker_check.complaint(probe, found):
        raise UserError(wrong)


def _answer(probe: Probe) -> dict[str, object]:
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


def _explained(e: RuntimeError) -> UserError:
    """Why the small job failed."""
    text = str(e)
    if "No module named 'beam_pipeline" in text or "preflight_worker" in text and "Attr" in text:
        return UserError(
            "the workers' Python has no imageshards of this release; expected the same one as "
            "here: install it with its constraints.txt into the pool's environment and start the "
            "pool from there (make worker-pool)."
        )
    return UserError(
        f"a small job that only looks around failed ({submit.last_line(text)}); expected a "
        "worker to answer: see the logs of the job service and of the worker pool."
    )
