"""Runs the project's programs as a person would: in processes of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 300


def run_module(
    module: str, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE …` to its end; TensorFlow reads its environment once in a process."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SEC,
        check=False,
    )
