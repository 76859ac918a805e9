"""One worker of the pool: what it imports, and how it begins.

The pool's fork server imports this module once, so that a worker starts in milliseconds.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
from google.protobuf import json_format, text_format

from beam_pipeline.imports import quick_imports

with quick_imports():
    from apache_beam.runners.worker import sdk_worker_main, worker_id_interceptor


_PROVISION_TIMEOUT_SEC = 10.0


def run(worker_id: str, control: str, logs: str, provision: str) -> None:
    """Works for a runner until it hangs up.

    Args:
        worker_id: The runner's name for this worker.
        control: host:port of its control service.
        logs: host:port of its logging service.
        provision: host:port of the service that knows the pipeline options; "" for none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # It logs every pipeline option, keys of an object store among them.
    logging.getLogger(sdk_worker_main.__name__).setLevel(logging.WARNING)
    # Beam reads it from the environment when this class is made, before the fork.
    worker_id_interceptor.WorkerIdInterceptor._worker_id = worker_id
    os.environ.update(
        WORKER_ID=worker_id,
        CONTROL_API_SERVICE_DESCRIPTOR=_descriptor(control),
        LOGGING_API_SERVICE_DESCRIPTOR=_descriptor(logs),
    )
    os.environ.update(_provided(worker_id, provision) if provision else {})
    sdk_worker_main.main([])
    logging.shutdown()
    os._exit(0)  # threads of a runner that is gone would keep the process


def _descriptor(url: str) -> str:
    return text_format.MessageToString(sdk_worker_main.endpoints_pb2.ApiServiceDescriptor(url=url))


def _provided(worker_id: str, provision: str) -> dict[str, str]:
    """The pipeline options and what the runner can do, as Beam's workers read them."""
    with grpc.insecure_channel(provision) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        info = stub.GetProvisionInfo(
            beam_provision_api_pb2.GetProvisionInfoRequest(),
            timeout=_PROVISION_TIMEOUT_SEC,
            metadata=(("worker_id", worker_id),),
        ).info
    found = {
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    if info.HasField("status_endpoint"):
        found["STATUS_API_SERVICE_DESCRIPTOR"] = _descriptor(info.status_endpoint.url)
    return found


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
