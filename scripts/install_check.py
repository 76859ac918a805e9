"""Proves the install: builds the sdist and the wheel, installs them, and runs the demo from there.

    python scripts/install_check.py run [--python python3.12]
    python scripts/install_check.py resolve

`run` makes a new virtual environment outside of this checkout, installs the wheel with [trainer]
by plain pip, without the lock, and runs each command on drawn pictures; then it installs the
sdist. `resolve` asks for the requirements of every extra on every supported Python, without
installing any. Where no package index can be reached both say so in one line and end well.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = (
    "",
    "pipeline",
    "columns",
    "dataflow",
    "trainer",
    "gcp",
    "aws",
    "docs",
    "dev",
)
PICTURES_PER_CLASS = 40
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|name resolution|Name or service not known|"
    r"Failed to (?:fetch|connect)|dns error|Network is unreachable",
    re.IGNORECASE,
)


class NoIndexError(Exception):
    """No package index can be reached."""


class FailedError(Exception):
    """A command failed: the command, and the end of what it said."""


def call(*command: str | os.PathLike[str], folder: pathlib.Path = ROOT, **environment: str) -> str:
    """Runs a command as a user would, without this checkout on the path; returns its output.

    Raises:
        NoIndexError: It failed for want of a package index.
        FailedError: It failed for another reason.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if not done.returncode:
        return done.stdout
    if _UNREACHABLE.search(done.stdout):
        raise NoIndexError
    tail = "\n".join(done.stdout.splitlines()[-15:])
    raise FailedError(f"{' '.join(map(str, command))}\n{tail}")


def runs(python: str) -> bool:
    """Whether this interpreter is here."""
    if shutil.which(python) is None:  # pyenv has a stand-in for each that it knows
        return False
    return not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode


def copy_sources(folder: pathlib.Path) -> pathlib.Path:
    """A copy of what is shipped: building leaves nothing in the checkout."""
    copy = folder / "checkout"
    for name in ("imageshards", "beam_pipeline", "trainer"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    return copy


def build(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The wheel, made from the sdist, and the sdist."""
    made = folder / "dist"
    tools = folder / "tools"
    call(sys.executable, "-m", "venv", tools)
    call(tools / "bin/python", "-m", "pip", "install", "--quiet", "build", folder=folder)
    call(tools / "bin/python", "-m", "build", "--outdir", made, folder=copy_sources(folder))
    return next(made.glob("*.whl")), next(made.glob("*.tar.gz"))


def run_demo(tools: pathlib.Path, folder: pathlib.Path) -> None:
    """Every step from pictures to a served model, by the installed command."""
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"

    def step(*arguments: str) -> str:
        print(f"  imageshards {' '.join(arguments)}", flush=True)
        return call(
            tools / "imageshards", *arguments, folder=folder, PATH=path, TF_CPP_MIN_LOG_LEVEL="3"
        )

    drawer = ROOT / "scripts" / "make_demo_images.py"
    count = str(PICTURES_PER_CLASS)
    call(tools / "python", drawer, "--per_class", count, "--output", "photos", folder=folder)
    step("--version")
    step("--help")
    step(
        *("build", "--input", "photos", "--output", "shards", "--image_size", "96"),
        *("--splits", "train=0.8,validation=0.2", "--num_shards", "train=4,validation=2"),
        *("--max_reject_fraction", "0.05"),
    )
    step("verify", "shards")
    step("report", "shards")
    step(
        *("train", "--data", "shards", "--output", "model", "--model", "cnn", "--epochs", "1"),
        *("--batch_size", "16"),
    )
    step("evaluate", "--model_path", "model", "--data", "shards")
    step("predict", "--model_path", "model", "photos/circle/circle_0004.jpg")
    step("export", "--model_path", "model", "--format", "saved_model", "--output", "served")
    step("completion", "bash")


def size_mb(folder: pathlib.Path) -> float:
    """Size of all files below a folder."""
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6


def check_run(python: str) -> str:
    """Builds, installs and runs; returns the sentence that says so."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="imageshards-install-") as name:
        folder = pathlib.Path(name)
        print(f"building sdist and wheel, installing the wheel with {python} ...", flush=True)
        wheel, sdist = build(folder)
        call(python, "-m", "venv", folder / "venv")
        tools = folder / "venv" / "bin"
        pip = (tools / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        call(*pip, f"{wheel}[pipeline,trainer]", folder=folder)
        installed_sec = time.monotonic() - started
        call(tools / "python", "-m", "pip", "check", folder=folder)
        empty = folder / "elsewhere"
        empty.mkdir()
        run_demo(tools, empty)
        print(f"  pip install {sdist.name}", flush=True)
        call(*pip, "--no-deps", "--force-reinstall", sdist, folder=folder)
        call(tools / "imageshards", "--help", folder=empty)
        version = call(tools / "python", "-c", "import sys; print(sys.version.split()[0])").strip()
        packages_mb = size_mb(folder / "venv")
        return (
            f"install check passed: Python {version}; wheel {wheel.stat().st_size / 1e6:.1f} MB, "
            f"with [pipeline,trainer] {packages_mb:,.0f} MB installed in {installed_sec:.0f} s, "
            f"demo run from there, sdist installed; {time.monotonic() - started:.0f} s in all"
        )


def check_resolve() -> str:
    """Resolves the requirements of every extra on every Python; returns the sentence."""
    with tempfile.TemporaryDirectory(prefix="imageshards-resolve-") as name:
        folder = pathlib.Path(name)
        call(sys.executable, "-m", "venv", folder / "venv")
        tools = folder / "venv" / "bin"
        call(tools / "python", "-m", "pip", "install", "--quiet", "uv", folder=folder)
        copy = copy_sources(folder)
        for python in PYTHONS:
            for extra in EXTRAS:
                asked = ["--extra", extra] if extra else []
                found = call(
                    *(tools / "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"),
                    *("--python-version", python, *asked, "setup.py"),
                    folder=copy,
                )
                count = sum("==" in line for line in found.splitlines())
                print(f"  {python}  {extra or 'no extra':12} {count:4} packages", flush=True)
    return (
        f"resolve check passed: {len(EXTRAS)} sets of requirements on {', '.join(PYTHONS)}, "
        "without the lock"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a check; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("check", choices=("run", "resolve"), help="what is proven")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter of `run` (default: this one)"
    )
    args = parser.parse_args(argv)
    if args.check == "run" and not runs(args.python):
        print(f"install check skipped: there is no {args.python} on this machine")
        return 0
    try:
        print(check_run(args.python) if args.check == "run" else check_resolve())
    except NoIndexError:
        print(f"{args.check} check skipped: no package index can be reached from here")
    except FailedError as e:
        print(f"{args.check} check failed: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
