"""Starts and stops what a portable build on this host needs.

    .venv/bin/python scripts/servers.py start|stop|status worker-pool|job-service [--port PORT]

`worker-pool` is Beam's own pool, with this virtual environment, `job-service` is Prism.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from scripts import background, prism  # found by the line above

POOL = "apache_beam.runners.worker.worker_pool_main"
PORTS = {"worker-pool": 50000, "job-service": 8073}
USES = {
    "worker-pool": "--environment_type EXTERNAL --environment_config localhost:{port}",
    "job-service": "--runner PortableRunner --job_endpoint localhost:{port}",
}


def command(name: str, port: int) -> list[str]:
    """What runs in the background.

    Raises:
        ServerError: Prism cannot be had.
    """
    if name == "worker-pool":
        # It starts the `python` that is first on its PATH for each worker.
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        return ["env", f"PATH={path}", sys.executable, "-m", POOL, "--service_port", str(port)]
    flags = ["--serve_http=false", "--log_level=warn", "--log_kind=text"]
    return [str(prism.binary()), f"--job_port={port}", *flags]


def main(argv: Sequence[str] | None = None) -> int:
    """Starts, stops or shows a server; 2 for a mistake, said in one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("server", choices=PORTS)
    parser.add_argument("--port", type=int, help="default: 50000 and 8073")
    args = parser.parse_args(argv)
    port = args.port or PORTS[args.server]
    server = background.Server(args.server.replace("-", " "), port)
    running = server.program.process()
    if args.action == "stop":
        print(server.stop())
        return 0
    if args.action == "status":
        print(f"{server.title}: {f'process {running.pid}' if running else 'not running'}")
        return 0 if running else 1
    try:
        print(server.start([] if running else command(args.server, port)))
    except background.ServerError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    print(f"use it with: {USES[args.server].format(port=port)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
