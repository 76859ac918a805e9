"""host:port of the servers a job needs: which of them this machine can ask."""

from __future__ import annotations

import ipaddress
import json
import socket

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

CONNECT_TIMEOUT_SEC = 5.0


def is_here(address: str) -> bool:
    """Whether host:port is an address of this machine itself."""
    host = address.rpartition(":")[0].strip("[]")
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(address: str, timeout_sec: float = CONNECT_TIMEOUT_SEC) -> str | None:
    """Why nothing can be reached at host:port; None if something can.

    Raises:
        ValueError: It is no host:port.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not 0 < int(port) < 65536:
        raise ValueError(address)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_sec):
            return None
    except TimeoutError:
        return f"no answer within {timeout_sec:.0f} s"
    except OSError as e:
        return e.strerror or str(e)


def pool_address(options: PipelineOptions) -> str:
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
    address = pool_address(options)
    service = options.view_as(PortableOptions).job_endpoint or ""
    here = is_here(address) and (not service or is_here(service))
    return address if here else ""
