"""Writes constraints.txt: one exact version per package and Python, for Linux x86-64.

    pip install uv packaging && python scripts/lock_dependencies.py

Each Python's set is resolved on its own, starting from the versions already locked, so
nothing moves without a reason; `--upgrade` moves everything. Where the Pythons differ, a
line carries an environment marker. Both `make` and CI install exactly these versions.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOCK = ROOT / "constraints.txt"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

# On Python 3.10 tensorflow-metadata 1.21 declares protobuf<=6.32 while Beam's
# google-cloud-bigtable declares >=6.33.5: no set of versions satisfies both. The very same
# wheel of tensorflow-metadata runs with 6.33 on 3.11, so 3.10 gets that version too.
OVERRIDES: Mapping[str, Sequence[str]] = {"3.10": ("protobuf>=6.33.5,<7",)}

HEADER = """\
# Exact versions for Linux x86-64, every Python this project supports. It is complete, so it
# is installed with `pip install --no-deps -r constraints.txt`; with Python 3.11 or newer it
# also serves as `pip install -c constraints.txt …`. (On 3.10 two upstream packages declare
# protobuf ranges that exclude each other; see scripts/lock_dependencies.py, which writes
# this file.)
"""


def merge(locked: Mapping[str, Mapping[str, str]]) -> str:
    """One requirements text from a set of versions per Python.

    Args:
        locked: Python version (`3.10`) → package → exact version, Pythons in order.

    Returns:
        Sorted lines `name==version`, with a `python_version` marker where a version does
        not hold for all Pythons.
    """
    pythons = list(locked)
    lines = []
    for name in sorted({name for packages in locked.values() for name in packages}):
        by_version: dict[str, list[str]] = {}
        for python in pythons:
            if name in locked[python]:
                by_version.setdefault(locked[python][name], []).append(python)
        for version, having in by_version.items():
            lines.append(f"{name}=={version}{_marker(having, pythons)}")
    return "\n".join(lines) + "\n"


def _marker(having: Sequence[str], pythons: Sequence[str]) -> str:
    if list(having) == list(pythons):
        return ""
    if list(having) == list(pythons[: len(having)]):
        return f' ; python_version <= "{having[-1]}"'
    if list(having) == list(pythons[-len(having) :]):
        return f' ; python_version >= "{having[0]}"'
    return " ; " + " or ".join(f'python_version == "{python}"' for python in having)


def resolve(python: str, start: str) -> dict[str, str]:
    """The versions uv chooses for one Python, preferring those in `start`.

    Raises:
        subprocess.CalledProcessError: No set of versions satisfies the requirements; uv
            has said why on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "lock.txt")
        out.write_text(start, encoding="utf-8")
        overrides = pathlib.Path(folder, "overrides.txt")
        overrides.write_text("\n".join(OVERRIDES.get(python, ())), encoding="utf-8")
        command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
        command += ["--no-emit-index-url", "--no-emit-find-links", "--output-file", str(out)]
        command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
        command += ["--override", str(overrides), "--extra", "trainer", "--extra", "dev"]
        subprocess.run([*command, "setup.py"], cwd=ROOT, check=True)
        pins = [line.split("==") for line in out.read_text(encoding="utf-8").splitlines()]
    return {pin[0].strip(): pin[1].split(";")[0].strip() for pin in pins if len(pin) == 2}


def lines_for(python: str, text: str) -> list[str]:
    """The lines of a lock that hold for one Python, without their markers."""
    kept = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(
                {"python_version": python}
            ):
                kept.append(f"{requirement.name}{requirement.specifier}")
    return kept


def main(argv: list[str] | None = None) -> int:
    """Writes the lock; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="forget the versions locked so far")
    upgrade = parser.parse_args(argv).upgrade
    old = "" if upgrade or not LOCK.exists() else LOCK.read_text(encoding="utf-8")
    try:
        locked = {python: resolve(python, "\n".join(lines_for(python, old))) for python in PYTHONS}
    except FileNotFoundError:
        print("uv is not on the PATH; install it with: pip install uv", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    LOCK.write_text(HEADER + merge(locked), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
