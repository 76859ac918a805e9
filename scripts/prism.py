"""Installs Prism, Beam's portable runner for one host, and prints the path of the program.

.venv/bin/python scripts/prism.py
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUILD_TIMEOUT_SEC = 900.0
VARIABLE = "IMAGESHARDS_PRISM"
PACKAGE = "github.com/apache/beam/sdks/v2/go/cmd/prism"


class PrismError(Exception):
    """Error whose message is one sentence for the user."""


def find_prism() -> pathlib.Path:
    """Returns the path of Prism in the version of the installed Beam.

    Raises:
        PrismError: Prism is missing; the message names the remedy.
    """
    given = os.environ.get(VARIABLE)
    path = pathlib.Path(given) if given else _kept()
    if os.access(path, os.X_OK):
        return path
    if given:
        raise PrismError(f"{VARIABLE} received {given!r}; expected the path of a program.")
    raise PrismError(
        f"Prism is missing ({path}); run `make prism`, or set {VARIABLE} to the program."
    )


def prepare_prism() -> pathlib.Path:
    """Returns the path of Prism and installs the program if necessary.

    If Go has already built the right version, the function copies that program. Otherwise
    `go install` builds the program.

    Raises:
        PrismError: The installation is impossible; the message names the missing part.
    """
    try:
        return find_prism()
    except PrismError:
        if VARIABLE in os.environ:
            raise
    if shutil.which("go") is None:
        raise PrismError(
            f"Prism cannot be built: Go is not on the PATH; install Go, or set {VARIABLE} to the "
            "program."
        )
    kept = _kept()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        if installed := _installed():
            shutil.copy(installed, pathlib.Path(folder, "prism"))
        else:
            _build(folder)
        # Another process may build Prism at the same time; a rename never shows half a program.
        os.replace(pathlib.Path(folder, "prism"), kept)
    return kept


def _build(folder: str) -> None:
    version = _beam_version()
    print(f"building Prism {version} with go install (about a minute, once) ...", file=sys.stderr)
    built = subprocess.run(
        ["go", "install", f"{PACKAGE}@v{version}"],
        env=os.environ | {"GOBIN": folder}, capture_output=True, text=True,
        timeout=BUILD_TIMEOUT_SEC, check=False,
    )  # fmt: skip
    if built.returncode or not pathlib.Path(folder, "prism").is_file():
        last = (built.stderr.strip().splitlines() or [""])[-1]
        raise PrismError(
            f"Prism cannot be built: go install failed ({last}); fix the error, or set {VARIABLE} "
            "to the program."
        )


def _kept() -> pathlib.Path:
    """Returns the path of Prism in the cache, which depends on the version of Beam."""
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root, "imageshards", f"prism-v{_beam_version()}")


def _beam_version() -> str:
    return importlib.metadata.version("apache-beam")


def _installed() -> str | None:
    """Returns a Prism of this version that `go install` left in Go's folder or on the PATH."""
    go_path = subprocess.run(["go", "env", "GOPATH"], capture_output=True, text=True, check=False)
    places = os.pathsep.join([f"{go_path.stdout.strip()}/bin", os.environ["PATH"]])
    if (found := shutil.which("prism", path=places)) is None:
        return None
    told = subprocess.run(["go", "version", "-m", found], capture_output=True, text=True)
    built_from = [line.split() for line in told.stdout.splitlines()]
    module = ["mod", PACKAGE.partition("/go/")[0], f"v{_beam_version()}"]
    return found if module in [words[:3] for words in built_from] else None


def main() -> int:
    """Installs Prism and prints the path; returns 2 and prints one sentence after an error."""
    try:
        print(prepare_prism())
    except PrismError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
