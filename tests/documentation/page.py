"""Runs the code blocks of one page, in a folder of its own that has what examples name."""

import contextlib
import csv
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
from typing import Any

import pytest

from tests.documentation.blocks import Block, commands_of
from tests.support.commands import ROOT, served_environment

TIMEOUT_SEC = 300
# Of what pages import, all that may be absent here; another name is a mistake of the page.
MAY_BE_ABSENT = frozenset({"jax", "nvidia", "nvidia.dali", "torch"})
# As the pages say that they were made.
PREPARE = """
python {root}/scripts/make_demo_images.py --output photos --per_class 40
rm photos/*/notes.txt photos/square/.hidden.jpg
rm photos/square/square_0005.jpg photos/triangle/triangle_0005.jpg  # broken ones
imageshards build --input photos --output shards --image_size 96 \\
    --splits train=0.8,validation=0.2 --num_shards train=4,validation=2
imageshards train --data shards --output model --model cnn --epochs 1 --batch_size 16 --seed 1
"""


class Failed(Exception):
    """A block did not run; the message has its output."""


class Page:
    """The folder of a page, and its Python."""

    def __init__(self, path: str, shared: pathlib.Path, folder: pathlib.Path):
        self._path = path
        self._environment = served_environment()
        shutil.copytree(prepared(shared, self._environment), folder)
        self._folder = folder
        self._python: subprocess.Popen[str] | None = None

    def run(self, block: Block) -> None:
        """Runs one block to its end; raises `Failed`, or skips where a package may be absent."""
        if block.language != "python":
            run_bash(commands_of(block), self._folder, self._environment)
            return
        if self._python is None:
            self._python = subprocess.Popen(
                ["python", "-m", "tests.documentation.python_session", self._path],
                executable=shutil.which("python", path=self._environment["PATH"]),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None and self._python.stdout is not None
        printed = self._folder.with_name(f"{self._folder.name}-{block.line}.log")
        printed.touch()
        request = json.dumps([block.line + 1, block.source, str(printed)])
        with contextlib.suppress(BrokenPipeError):
            self._python.stdin.write(request + "\n")
            self._python.stdin.flush()
        answer = self._python.stdout.readline()  # `make test` ends what takes too long
        if not answer:
            raise Failed(f"{printed.read_text()}\nit ended with {self._python.wait()}")
        error = json.loads(answer)
        if error.get("missing") in MAY_BE_ABSENT:
            pytest.skip(f"the package {error['missing']} is not installed")
        if error:
            raise Failed(f"{printed.read_text()}\n{error['error']}")

    def close(self) -> None:
        if self._python is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._python.communicate(timeout=5)
            self._python.kill()
            self._python.wait()


def run_bash(commands: str, folder: pathlib.Path, environ: dict[str, str]) -> str:
    """What commands of a shell print; raises `Failed` if one fails or they take too long."""
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed, _ = shell.communicate(timeout=TIMEOUT_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            raise Failed(f"{shell.communicate()[0]}\nit did not end in {TIMEOUT_SEC} s") from None
    if shell.returncode:
        raise Failed(f"{printed}\nexit code {shell.returncode}")
    return printed


def prepared(shared: pathlib.Path, environ: dict[str, str]) -> pathlib.Path:
    """The folder that every page begins with; made once for all processes of tests."""
    folder = shared / "prepared"
    with (shared / "prepared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            new = shared / "preparing"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            run_bash(PREPARE.format(root=ROOT), new, environ)
            _write_rows(new)
            new.rename(folder)
    return folder


def _write_rows(folder: pathlib.Path) -> None:
    """Manifests of the photos, as CSV and JSON Lines."""
    rows: list[dict[str, Any]] = [
        {
            "path": str(photo.relative_to(folder)),
            "label": photo.parent.name,
            "age": round(1 + number * 0.25, 2),
            "caption": f"a {photo.parent.name}, drawn",
            "tokens": [number, number + 1, 7][: 1 + number % 3],
        }
        for number, photo in enumerate(sorted((folder / "photos").rglob("*.[jJ]*")))
    ]
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows({**row, "tokens": json.dumps(row["tokens"])} for row in rows)
