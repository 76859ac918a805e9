"""Builds the sdist and the wheel, checks their metadata, and runs the commands of each extra.

    python scripts/install_check.py [--python python3.12]

`twine check` applies the rules of a package index to both files. pip then installs the wheel into
four new virtual environments outside of this checkout: without extras, with [pipeline,heif], with
[columns] and with [trainer]. The installation does not use constraints.txt.
If no package index is reachable, the script prints one line and succeeds.
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
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURES_PER_CLASS = 40


class Installation(NamedTuple):
    """Virtual environment with one choice of extras, and the checks to run in it.

    Attributes:
        extra: Extras to install besides the package `imageshards`; empty for none.
        absent: Packages that must not be importable in this environment.
        refused: Pairs of a command and the missing extra that its error message has to name.
        steps: Commands of `imageshards` that must succeed. All environments share one folder.
    """

    extra: str
    absent: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]


INSTALLATIONS = (
    Installation(
        "pipeline,heif",
        ("tensorflow", "tensorflow_transform", "keras"),
        (("build --input table.csv --output refused", "columns"),),
        (
            "build --input photos --output shards --image_size 96 --max_reject_fraction 0.05"
            " --splits train=0.8,validation=0.2 --num_shards train=4,validation=2",
        ),
    ),
    Installation(
        "",
        ("apache_beam", "tensorflow", "keras"),
        (
            ("build --input photos --output refused", "pipeline"),
            ("train --data shards --output refused", "trainer"),
        ),
        (
            "--version",
            "--help",
            "verify shards",
            "report shards",
            "duplicates shards",
            "adopt shards --output adopted",
        ),
    ),
    Installation(
        "trainer",
        ("apache_beam", "tensorflow_transform"),
        (("build --input photos --output refused", "pipeline"),),
        (
            "train --data shards --output model --model cnn --epochs 1 --batch_size 16",
            "evaluate --model_path model --data shards",
            "predict --model_path model photos/circle/circle_0004.jpg",
            "export --model_path model --output served",
        ),
    ),
    Installation(
        "columns",
        (),
        (),
        (
            "build --input table.csv --output with-age --image_size 96 --columns age:float:zscore"
            " --max_reject_fraction 0.05",
        ),
    ),
)
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|name resolution|Name or service not known|"
    r"Failed to (?:fetch|connect)|dns error|Network is unreachable",
    re.IGNORECASE,
)


class NoIndexError(Exception):
    """Error for an unreachable package index."""


class FailedError(Exception):
    """Error with a failed command and the end of its output."""


def call(
    *command: str | os.PathLike[str],
    folder: pathlib.Path = ROOT,
    code: int = 0,
    asks_index: bool = False,
) -> str:
    """Runs a command without this checkout on the Python path and returns the command's output.

    Args:
        *command: Program and arguments.
        folder: Working directory.
        code: Expected exit code.
        asks_index: Whether the command uses a package index.

    Raises:
        NoIndexError: The command uses a package index and could not reach one.
        FailedError: The exit code differs from `code`.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode == code:
        return done.stdout
    if asks_index and _UNREACHABLE.search(done.stdout):
        raise NoIndexError
    tail = "\n".join(done.stdout.splitlines()[-15:])
    raise FailedError(f"{' '.join(map(str, command))}\n{tail}")


def copy_sources(folder: pathlib.Path) -> pathlib.Path:
    """Copies the shipped files, so that the build leaves no files in the checkout."""
    copy = folder / "checkout"
    for name in ("imageshards", "beam_pipeline", "trainer"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy)
    return copy


def new_environment(folder: pathlib.Path, python: str, *packages: str) -> pathlib.Path:
    """Creates a virtual environment with the given packages and returns its folder of programs."""
    call(python, "-m", "venv", folder)
    install = (folder / "bin/python", "-m", "pip", "install", "--quiet")
    call(*install, *packages, folder=folder.parent, asks_index=True)
    return folder / "bin"


def draw(python: pathlib.Path, work: pathlib.Path) -> None:
    """Draws class folders of images and writes an image table with a column `age`."""
    drawer = ROOT / "scripts" / "make_demo_images.py"
    count = str(PICTURES_PER_CLASS)
    call(python, drawer, "--per_class", count, "--output", "photos", folder=work)
    paths = [
        f"photos/{name}/{name}_00{n}.jpg" for name in ("circle", "square") for n in range(13, 20)
    ]
    rows = [f"{path},{path.split('/')[1]},{n}.5" for n, path in enumerate(paths)]
    (work / "table.csv").write_text("\n".join(["image,label,age", *rows]))


def check_installation(
    installation: Installation, wheel: pathlib.Path, python: str, folder: pathlib.Path
) -> pathlib.Path:
    """Installs the wheel with an extra and runs the checks in `folder / "elsewhere"`.

    Returns:
        The folder of programs of the new environment.
    """
    extra = installation.extra
    begun = time.monotonic()
    asked = f"{wheel}[{extra}]" if extra else str(wheel)
    programs = new_environment(folder / f"with-{extra or 'nothing'}", python, asked)
    installed_sec = time.monotonic() - begun
    interpreter, work = programs / "python", folder / "elsewhere"
    call(interpreter, "-m", "pip", "check", folder=folder)
    packages = call(interpreter, "-m", "pip", "list", "--format=freeze", folder=folder).split()
    size_mb = sum(f.lstat().st_size for f in programs.parent.rglob("*") if f.is_file()) / 1e6
    print(
        f"{f'[{extra}]' if extra else 'alone':11}{len(packages):4} packages, {size_mb:6,.0f} MB, "
        f"installed in {installed_sec:.0f} s",
        flush=True,
    )
    if not (work / "photos").exists():
        draw(interpreter, work)
    for name in installation.absent:
        call(interpreter, "-c", f"import {name}", folder=work, code=1)
    for command, needed in installation.refused:
        said = call(programs / "imageshards", *command.split(), folder=work, code=2)
        if f"imageshards[{needed}]" not in said:
            raise FailedError(f"imageshards {command}\n{said}")
        if (work / "refused").exists():
            raise FailedError(f"imageshards {command}: the refused command left an output folder")
    for step in installation.steps:
        print(f"  imageshards {step}", flush=True)
        call(programs / "imageshards", *step.split(), folder=work)
    return programs


def check_run(python: str) -> str:
    """Runs all checks and returns a sentence that reports success."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="imageshards-install-") as name:
        folder = pathlib.Path(name)
        (folder / "elsewhere").mkdir()
        print(f"building sdist and wheel, installing the wheel with {python} ...", flush=True)
        builder = new_environment(folder / "builder", sys.executable, "build", "twine") / "python"
        made = folder / "dist"
        sources = copy_sources(folder)
        call(builder, "-m", "build", "--outdir", made, folder=sources, asks_index=True)
        wheel, sdist = next(made.glob("*.whl")), next(made.glob("*.tar.gz"))
        print(call(builder, "-m", "twine", "check", "--strict", wheel, sdist).strip(), flush=True)
        for installation in INSTALLATIONS:
            programs = check_installation(installation, wheel, python, folder)
        install = (programs / "python", "-m", "pip", "install", "--no-deps", "--force-reinstall")
        call(*install, sdist, asks_index=True)
        call(programs / "imageshards", "--help", folder=folder)
    return (
        f"install check passed: the wheel works with each extra, and the sdist installs; "
        f"{time.monotonic() - started:.0f} s in total"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the checks and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter to test (default: this one)"
    )
    args = parser.parse_args(argv)
    # pyenv puts a shim on the PATH for every known version, even if the version is not active.
    if not shutil.which(args.python) or subprocess.call([args.python, "-c", ""]):
        print(f"install check skipped: {args.python} does not run on this host")
        return 0
    try:
        print(check_run(args.python))
    except NoIndexError:
        print("install check skipped: no package index is reachable")
    except FailedError as e:
        print(f"install check failed: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
