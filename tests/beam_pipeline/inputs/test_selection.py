"""Images are left out by their keys, classes renamed, and one image is taken for each key."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from beam_pipeline.inputs.selection import (
    SelectImages,
    check_class_map,
    check_globs,
    read_keys,
    rename_classes,
    share_keys,
)
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import user_error_in
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused


def select(*names: str, expected: str = "", excluded_images: int = 0, **asked) -> None:
    """Checks what a selection leaves of batches such as `a1 b2`, a class and a number each."""
    batches = [
        RefBatch([ImageRef(name, f"/in/{name}", name[0]) for name in of_batch.split()])
        for of_batch in names
    ]
    with beam.Pipeline(FnApiRunner()) as pipeline:
        out = pipeline | beam.Create(batches) | SelectImages(**asked)
        rows = out.batches | beam.FlatMap(lambda b: [f"{ref.label}:{ref.key}" for ref in b.refs])
        assert_that(rows, equal_to(expected.split()), "rows")
        for skipped in out.skipped:
            count = skipped | beam.Map(lambda each: each["excluded"]) | beam.CombineGlobally(sum)
            assert_that(count, equal_to([excluded_images]), "skipped")


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.txt"

    def of(text: str):
        path.write_text(text)
        return share_keys(str(path), str(tmp_path))

    return of


def test_images_are_left_out_and_counted(keys):
    wanted = keys("a2\nb2\n")
    select("a1 a2 b1", "b2", expected="a:a1 b:b1", excluded_images=2, excluded=wanted)


def test_keys_that_no_input_has_end_the_build(keys):
    with pytest.raises(Exception) as error:
        select("a1 a2", expected="a:a1", excluded_images=1, excluded=keys("a2\nx9\nx7\n"))
    said = str(user_error_in(error.value))
    assert "2 of 3 keys" in said and "'x7'" in said and "keys.txt" in said


def test_classes_are_renamed_and_joined():
    class_map = {"a": "pet", "b": "pet"}
    select("a1 b1 c1", expected="pet:a1 pet:b1 c:c1", class_map=class_map)
    (several,) = rename_classes(RefBatch([ImageRef("k", "k", ("a", "b", "c"))]), class_map).refs
    assert several.label == ("c", "pet")


def test_an_unknown_class_is_told_with_those_of_similar_names():
    with refused("class_map", "'dgo'", "'dog'"):
        check_class_map(["cat", "dog"], {"dgo": "pet"})


def test_a_glob_that_leaves_nothing_out_is_told():
    found = {"hidden", "excluded_by_glob: a: *", "excluded_by_glob: b"}
    assert check_globs(found, ["a: *", "b"])
    with refused("exclude_glob", "'c'"):
        check_globs(found, ["a: *", "c"])


def test_keys_are_read_from_lines_and_a_data_set(tmp_path):
    made = Dataset(tmp_path / "a")
    every = read_keys(str(made.directory))
    assert len(every) == 30 and every == sorted(every)
    (tmp_path / "keys.txt").write_bytes("\ufeffcat/ü 1.jpg\r\n\r\n#2\n".encode())
    assert read_keys(str(tmp_path / "keys.txt")) == ["#2", "cat/ü 1.jpg"]
    odd = ["a\x0bb", "a\x85b", "a\u2028b", "a\rb"]
    (tmp_path / "odd.txt").write_bytes("\n".join(odd).encode())
    assert read_keys(str(tmp_path / "odd.txt")) == sorted(odd)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("absent.txt", lambda path: None, "cannot be read"),
        ("empty.txt", lambda path: path.write_text("\n"), "names no key"),
        ("bytes.txt", lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    ],
)
def test_a_file_that_names_no_keys_is_told(tmp_path, name, write, words):
    write(tmp_path / name)
    with refused("exclude", name, words):
        read_keys(str(tmp_path / name))
