"""One dataset for all that the commit puts beside the shards."""

import json
import pathlib

import pytest

from tests.support.builds import build_set, class_folders

COLUMNS = "age:int,weight:float,place:float[2],tokens:int[],note:string,words:string[]"


@pytest.fixture(scope="session")
def insects(tmp_path_factory) -> pathlib.Path:
    """36 pictures of three classes with columns of every kind; rejects made records move."""
    root = tmp_path_factory.mktemp("insects")
    photos = class_folders(root / "photos", {"ant": 12, "bee's nest": 12, "Čmelák": 12}, broken=4)
    rows = [
        {
            # Paths are keys, from which splits are drawn: not those of a temporary folder.
            "image": str(path.relative_to(root)), "label": path.parent.name, "age": i,
            "weight": i / 4, "place": [i / 2, -1.0], "tokens": list(range(i % 3)),
            "note": "naïve", "words": ["w"] * (i % 3),
        }
        for i, path in enumerate(sorted(photos.rglob("*.jpg")))
    ]  # fmt: skip
    listed = root / "list.jsonl"
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shards = ["--splits", "train=0.8,validation=0.2", "--num_shards", "train=4,validation=2"]
    flags = ["--image_size", "24x32", "--max_reject_fraction", 0.5, "--columns", COLUMNS, *shards]
    return build_set(listed, root / "set", "--no_report", *flags)
