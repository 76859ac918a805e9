"""Small inputs of real JPEGs, and builds of them in this process."""

import inspect
import itertools
import json
import pathlib
import random
import runpy
import textwrap
from typing import Any

from PIL import Image

from beam_pipeline.__main__ import main
from beam_pipeline.images import process_pool
from imageshards import storage
from imageshards.example import decode_example
from imageshards.tfrecord import read_records
from tests.support import manifests
from tests.support.pictures import saved


def jpeg(seed: int, width: int = 60, height: int = 40, **save: Any) -> bytes:
    """A JPEG of noise over a colour, another for each seed."""
    draw = random.Random(seed)
    small = Image.frombytes("RGB", (6, 4), bytes(draw.randrange(256) for _ in range(72)))
    return saved(small.resize((width, height), Image.Resampling.BICUBIC), **save)


def class_folders(root: pathlib.Path, counts: dict[str, int], seed=0, broken=0) -> pathlib.Path:
    """`root/<class>/<class> N.jpg`, so many of each; broken ones, of the first, move records."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            number = seed + 10_000 * (sorted(counts).index(name) + 1) + i
            (root / name / f"{name} {i}.jpg").write_bytes(jpeg(number))
    for i in range(broken):
        (root / next(iter(counts)) / f"broken {i}.jpg").write_bytes(b"\xff\xd8 no picture")
    return root


def build(*arguments: str | pathlib.Path) -> int:
    """Runs a build in this process, by one of its own; returns its exit code."""
    workers = [] if "--direct_num_workers" in arguments else ["--direct_num_workers", "1"]
    return main([*workers, *map(str, arguments)])


def build_set(source, output, *flags):
    """The output of a build that must succeed."""
    assert build("--input", source, "--output", output, *flags) == 0
    return output


def manifest(output: pathlib.Path) -> Any:
    return json.loads((output / "manifest.json").read_text())


def shard_bytes(output: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(output.glob("*.tfrecord*"))}


def records_of(output: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Key → features, and `split`, of every record of a dataset, shard by shard."""
    return {
        features["image/filename"][0].decode(): features | {"split": split}
        for split, shard in manifests.shards_of(manifest(output))
        for features in examples(output / shard["file"])
    }


def examples(path: object) -> list[dict[str, Any]]:
    return [dict(decode_example(record.payload)) for record in read_records(str(path))]


def rejects_of(output: pathlib.Path) -> dict[str, dict[str, Any]]:
    lines = (output / "quarantine" / "rejects.jsonl").read_text().splitlines()
    return {row["key"]: row for row in map(json.loads, lines)}


def quarantined(output: object) -> dict[str, Any]:
    """Key → original bytes in the quarantine, in a list; None where they are not kept."""
    paths = (file.path for file in storage.files_below(f"{output}/quarantine"))
    rejects = (row for path in paths if path.endswith(".tfrecord") for row in examples(path))
    return {r["image/filename"][0].decode(): r.get("image/encoded") for r in rejects}


def run_example(documented: object, folder: pathlib.Path, monkeypatch) -> None:
    """Runs the example in a docstring, as a script in a folder."""
    monkeypatch.setattr(process_pool, "_pools", [])  # whose processes are in another folder
    monkeypatch.chdir(folder)
    lines = (inspect.getdoc(documented) or "").partition("Example:\n\n")[2].splitlines()
    code = itertools.takewhile(lambda line: not line or line.startswith(" "), lines)
    script = folder / "example.py"
    script.write_text(textwrap.dedent("\n".join(code)))
    runpy.run_path(str(script))
