"""Starts and stops a pool of Beam workers on this host, with this virtual environment.

.venv/bin/python scripts/worker_pool.py start|stop|status [--port 50000]
"""

from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import background  # noqa: E402

PORT = 50000
MODULE = "beam_pipeline.worker_pool"


def server(port: int) -> background.Server:
    """The pool at a port."""
    return background.Server("worker pool", port, f"{MODULE} --service_port {port}")


def command(port: int) -> list[str]:
    """What runs in the background."""
    return [sys.executable, "-m", MODULE, "--service_port", str(port)]


def usage(port: int) -> str:
    """The flags of a build that uses it."""
    return f"use it with: --environment_type EXTERNAL --environment_config localhost:{port}"


if __name__ == "__main__":
    sys.exit(background.main(server, PORT, command, usage, (__doc__ or "").split("\n")[0]))
