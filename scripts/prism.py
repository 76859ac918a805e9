"""Prism, Beam's portable runner for one host, as a program.

It is taken from $IMAGESHARDS_PRISM, or from the cache folder; else it is built there by
`go install`, else Beam downloads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from scripts import background

VARIABLE = "IMAGESHARDS_PRISM"
PACKAGE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
BUILD_TIMEOUT_SEC = 900
DOWNLOAD_TIMEOUT_SEC = 60

# Beam's own way to it, in a process of its own: it opens its address without a time-out.
_DOWNLOAD = """
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer
print(PrismJobServer(PipelineOptions([]))._get_executable_path())
"""


def binary() -> pathlib.Path:
    """Prism of the version of Beam that is installed; built or downloaded the first time.

    Raises:
        background.ServerError: It cannot be had; says what is missing.
    """
    if given := os.environ.get(VARIABLE):
        if not os.access(given, os.X_OK):
            raise background.ServerError(f"{VARIABLE} received {given!r}, which is no program.")
        return pathlib.Path(given)
    version = importlib.metadata.version("apache-beam")
    cached = background.cache_folder() / f"prism-v{version}"
    with _lock(cached.with_suffix(".lock")):
        if cached.is_file():
            return cached
        reason = _build(version, cached) if shutil.which("go") else "Go is not on the PATH"
        if cached.is_file():
            return cached
        return _download(reason)


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
    """One process builds; the others wait for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(version: str, target: pathlib.Path) -> str:
    """`go install`; returns why there is no `target` afterwards, if there is none."""
    print(f"building Prism {version} by go install (about a minute, once) ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        try:
            built = subprocess.run(
                ["go", "install", f"{PACKAGE}@v{version}"],
                env=os.environ | {"GOBIN": folder}, capture_output=True, text=True,
                timeout=BUILD_TIMEOUT_SEC, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"go install did not end within {BUILD_TIMEOUT_SEC} s"
        made = pathlib.Path(folder, "prism")
        if built.returncode == 0 and made.is_file():
            os.replace(made, target)
            return ""
    return f"go install failed ({_last_line(built.stderr)})"


def _download(reason: str) -> pathlib.Path:
    try:
        found = subprocess.run(
            [sys.executable, "-c", _DOWNLOAD], capture_output=True, text=True,
            timeout=DOWNLOAD_TIMEOUT_SEC, check=False,
        )  # fmt: skip
        path = pathlib.Path(_last_line(found.stdout))
        if found.returncode == 0 and path.is_file():
            return path
        second = _last_line(found.stderr)
    except subprocess.TimeoutExpired:
        second = f"no answer within {DOWNLOAD_TIMEOUT_SEC} s"
    raise background.ServerError(
        f"Prism cannot be had: {reason}, and Beam's download failed ({second}); install Go, or "
        f"set {VARIABLE} to the program."
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
