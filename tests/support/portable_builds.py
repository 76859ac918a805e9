"""Builds on the servers of `portable_servers`, in processes of their own or in this one."""

import contextlib
import io
import pathlib

from beam_pipeline.__main__ import main
from tests.support.builds import jpeg

SHARDS = 24
IMAGES = 144


def photos_in(root: pathlib.Path) -> pathlib.Path:
    """Two classes, large enough that a shard takes some 0.1 s; two are broken."""
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(IMAGES // 2 - 1):
            (root / name / f"{i}.jpg").write_bytes(jpeg(i, 900, 700))
        (root / name / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    return root


def flags(photos: object, output: object) -> list[str]:
    return [
        "--input", str(photos), "--output", str(output), "--image_size", "64", "--no_report",
        "--splits", "train=1", "--num_shards", str(SHARDS), "--max_reject_fraction", "0.02",
    ]  # fmt: skip


def run_here(*arguments: str) -> tuple[int, str]:
    """A whole build in this process: exit code and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main(arguments)
    return code, said.getvalue()


def finished_shards(output: pathlib.Path) -> int:
    return len(list((output / ".staging").glob("train-*.json")))


def keep_few_shards(output: pathlib.Path) -> int:
    """Forgets the other finished shards of a job that was stopped; how many there are now.

    On a busy machine it may have finished all of them before it noticed.
    """
    for path in sorted((output / ".staging").glob("train-*.json"))[4:]:
        path.unlink()
    return finished_shards(output)
