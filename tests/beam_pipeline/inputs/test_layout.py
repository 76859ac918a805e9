"""An output must not be where the next build lists images, nor replace the input of this one."""

import contextlib

import pytest

from beam_pipeline.inputs.layout import check_inputs_apart, check_output_apart
from beam_pipeline.options import InputOptions
from tests.support.errors import refused

NONE: dict = {}
FLAT: dict = {"label_regex": "^([a-z]+)"}


@pytest.mark.parametrize("root", ["", "gs://bucket"])
@pytest.mark.parametrize(
    ("source", "options", "output", "is_apart"),
    [
        ("photos", NONE, "photos", False),
        ("photos", NONE, "photos/deep/shards", False),
        ("photos", FLAT, "photos/shards", False),
        ("photos/*.jpg", FLAT, "photos", False),
        ("photos/**.jpg", FLAT, "photos/shards/deep", False),
        ("photos", NONE, "photos2", True),
        ("data/photos", NONE, "data", True),
        ("photos/*.jpg", FLAT, "photos/shards", True),
        ("photos/cat*/*.jpg", FLAT, "photos/shards", True),
        ("list.csv", NONE, "shards", True),
        ("data/list.csv", NONE, "data", True),
        ("rows/*.parquet", NONE, "rows/shards", True),
    ],
)
def test_an_output_inside_the_input_is_refused(tmp_path, root, source, options, output, is_apart):
    (tmp_path / "photos").mkdir()
    root = root or tmp_path
    with contextlib.nullcontext() if is_apart else refused("output", f"{root}/{output}"):
        check_output_apart(InputOptions(f"{root}/{source}", **options), f"{root}/{output}")


@pytest.mark.parametrize("root", ["", "gs://bucket"])
@pytest.mark.parametrize("name", ["quarantine", "report", "transform", ".staging"])
def test_an_input_that_the_build_would_replace_is_refused(tmp_path, root, name):
    root = root or tmp_path
    for source, options in ((name, NONE), (f"{name}/x/*.jpg", FLAT), (f"{name}/a.jsonl", NONE)):
        with refused("input", source):
            check_output_apart(InputOptions(f"{root}/out/{source}", **options), f"{root}/out")


def test_links_do_not_hide_that_an_output_is_inside_the_input(tmp_path):
    for name in ("photos", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "to_photos").symlink_to("photos")
    (tmp_path / "photos" / "to_elsewhere").symlink_to("../elsewhere")
    for source, output in (
        ("photos", "to_photos/shards"),
        ("to_photos", "photos/shards"),
        ("photos", "photos/to_elsewhere"),
    ):
        with refused("output", output):
            check_output_apart(InputOptions(str(tmp_path / source)), str(tmp_path / output))


def test_a_store_and_this_machine_are_apart():
    check_output_apart(InputOptions("gs://bucket/photos"), "s3://bucket/photos")
    check_output_apart(InputOptions("/photos"), "gs://photos")


@pytest.mark.parametrize(
    ("one", "other", "is_apart"),
    [
        ("photos", "photos", False),
        ("photos", "link", False),
        ("photos", "photos/cat", False),
        ("photos", "link/cat", False),
        ("photos/*.jpg", "photos/*.jpg", False),
        ("photos", "photos2", True),
        ("photos", "photos/rows.csv", True),
        ("photos", "photos/more.tar", True),
        ("photos/cat", "photos/dog", True),
    ],
)
def test_an_image_is_not_listed_with_two_inputs(tmp_path, one, other, is_apart):
    for name in ("photos/cat", "photos/dog", "photos2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("photos")
    sources = [
        InputOptions(f"{tmp_path}/{name}", **(FLAT if "*" in name else NONE))
        for name in (one, other)
    ]
    for given in (sources, sources[::-1]):
        with contextlib.nullcontext() if is_apart else refused("input", str(tmp_path)):
            check_inputs_apart(given)
