"""A flag of `build` changes what is listed of an input, or is refused: it never does nothing."""

import io
import json
import pathlib
import tarfile
import zipfile
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_pipeline import cli
from beam_pipeline.inputs.datasets import open_inputs
from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.pipeline import checked_schemas
from imageshards.commands.options import options_of
from imageshards.errors import UserError
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.listings import listed

BOXES = {"xmin": 0.1, "ymin": 0.1, "xmax": 0.5, "ymax": 0.5}
ROW: dict[str, Any] = {"word": "train", "other": "b", "tag": "k"} | BOXES


def archive(path: pathlib.Path, **members: bytes) -> str:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def made(kind: str, folder: pathlib.Path) -> str:
    """An input of a kind, with a cat and a dog, and further columns where it has columns."""
    for name in ("cat/x1.jpg", "dog/y2.jpg"):
        (folder / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "in" / name).write_bytes(name.encode())
    rows = [
        {"image": f"in/{name}", "label": name[:3], "id": name} | ROW | {"photo": "in/cat/x1.jpg"}
        for name in ("cat/x1.jpg", "dog/y2.jpg")
    ]
    if kind == "tar":
        return archive(folder / "a.tar", cat__x1_jpg=b"x", dog__y2_jpg=b"y")
    if kind == "zip":
        with zipfile.ZipFile(folder / "a.zip", "w") as packed:
            for name in ("cat/x1.jpg", "dog/y2.jpg"):
                packed.writestr(name, b"x")
        # A name whose encoding the zip does not say.
        data = (folder / "a.zip").read_bytes().replace(b"dog/", b"d\x94g/")
        (folder / "a.zip").write_bytes(data)
        return str(folder / "a.zip")
    if kind == "webdataset":
        said = json.dumps(ROW | {"label": "cat", "id": "1"}).encode()
        return archive(folder / "a.tar", x1_jpg=b"x", x1_json=said)
    if kind == "table":
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "rows.jsonl").write_text(lines)
        return str(folder / "rows.jsonl")
    if kind == "outside":
        (folder / "in" / "rows.csv").write_text("image,label\n../in/cat/x1.jpg,a\n../x.jpg,b\n")
        return str(folder / "in" / "rows.csv")
    if kind == "pictures":
        pictures = [row | {"image": b"x"} for row in rows]
        parquet.write_table(pa.Table.from_pylist(pictures), folder / "a.parquet")
        return str(folder / "a.parquet")
    if kind == "coco":
        images = [{"id": name, "file_name": name} for name in ("cat/x1.jpg", "dog/y2.jpg")]
        boxes = [{"image_id": "cat/x1.jpg", "category_id": 1, "bbox": [1, 2, 3, 4]}]
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "c"}]}
        (folder / "in" / "boxes.json").write_text(json.dumps(content))
        return str(folder / "in" / "boxes.json")
    if kind == "yolo":
        (folder / "in").rename(folder / "images")
        (folder / "labels" / "cat").mkdir(parents=True)
        (folder / "labels" / "cat" / "x1.txt").write_text("0 .5 .5 .1 .1")
        (folder / "data.yaml").write_text("names: [cat]")
        return str(folder / "data.yaml")
    if kind == "dataset":
        return str(Dataset(folder / "set").directory)
    return str(folder / "in" / "*/*.jpg" if kind == "glob" else folder / "in")


VALUES: dict[str, Any] = {
    "layout": "class_folders", "label": "none", "label_separator": "|", "label_regex": "(...)",
    "image_column": "photo", "label_column": "other", "key_column": "tag", "split_column": "word",
    "group_column": "word", "columns": (), "bbox_format": "pixels", "extensions": (".png",),
    "exclude_glob": ("*x1*",), "allow_any_path": True, "zip_encoding": "gbk",
    "image_path": "{photo}", "image_root": "/elsewhere", "drop_column": ("word",),
}  # fmt: skip
BASE = {"glob": {"label_regex": "(.)"}}
KINDS = "folders glob tar zip webdataset table pictures dataset coco yolo".split()


def observed(path: str, folder: pathlib.Path, **options: Any) -> object:
    """What a build learns of an input; None if it refuses the input."""
    try:
        source = InputOptions(path, **options)
        build = open_inputs(BuildOptions(source, str(folder / "out"), given=frozenset(options)))
        schemas = checked_schemas(build)
        return schemas, listed(build.source, str(folder / "spool"))
    except UserError:
        return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flag", VALUES)
def test_a_flag_changes_what_is_listed_or_is_refused(tmp_path, kind, flag):
    # What --labels changes is seen after the listing: inputs/test_label_files.py.
    assert VALUES.keys() == options_of(InputOptions).keys() - {"input", "labels"}
    kind = "outside" if (kind, flag) == ("table", "allow_any_path") else kind
    path, base = made(kind, tmp_path), BASE.get(kind, {})
    value = VALUES[flag]
    if flag == "layout":
        value = {"folders": "flat", "tar": "split_folders", "zip": "split_folders"}.get(kind, value)
    before = observed(path, tmp_path, **base)
    assert (before is None) == (kind == "outside")
    assert observed(path, tmp_path, **base | {flag: value}) != before


URLS = ("url_timeouts=1,2,3", "url_retries=1", "url_requests_per_host=2", "allow_private_hosts")
TABLE_BASE = ["--label_column=other", "--columns="]


@pytest.mark.parametrize(
    ("kind", "flags", "flag"),
    [
        *(("folders", [f"--{one}"], one.partition("=")[0]) for one in URLS),
        *(("pictures", [f"--{one}"], one.partition("=")[0]) for one in URLS[:1]),
        ("folders", ["--resize_mode=none", "--image_size=96"], "image_size"),
        ("folders", ["--resize_mode=none", "--filter=box"], "filter"),
        ("folders", ["--resize_mode=none", "--only_shrink"], "only_shrink"),
        ("folders", ["--colorspace=grey", "--subsampling=4:4:4"], "subsampling"),
        ("folders", ["--num_shards=2", "--shard_mb=1"], "shard_mb"),
        ("folders", ["--label=none", "--allow_one_class"], "allow_one_class"),
        ("folders", ["--bbox_frame=upright"], "bbox_frame"),
        ("folders", ["--transform_temp_dir=/tmp"], "transform_temp_dir"),
        ("dataset", ["--max_image_mpx=1"], "max_image_mpx"),
        ("dataset", ["--max_image_mb=1"], "max_image_mb"),
        ("dataset", ["--bbox_frame=upright"], "bbox_frame"),
    ],
)
def test_a_flag_that_others_or_the_input_make_idle_is_refused(tmp_path, kind, flags, flag):
    place = ["--input", made(kind, tmp_path), "--output", str(tmp_path / "out")]
    with refused(flag):
        checked_schemas(open_inputs(cli.parse([*place, *flags])[0]))
    (other, *_) = [each for each in flags if not each.startswith(f"--{flag}")] or [""]
    if other:
        assert checked_schemas(open_inputs(cli.parse([*place, other])[0]))


def test_flags_for_tables_and_boxes_are_taken_where_there_are_some(tmp_path):
    place = ["--input", made("table", tmp_path), "--output", str(tmp_path / "out")]
    flags = [*(f"--{one}" for one in URLS), "--bbox_frame=upright", "--transform_temp_dir=/tmp"]
    assert checked_schemas(open_inputs(cli.parse([*place, *flags])[0]))
