"""Keys that leave images out, classes that are renamed, and what of them no input has."""

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from beam_pipeline.inputs import selection
from beam_pipeline.inputs.selection import check_globs, read_keys, rename_classes
from beam_pipeline.planning.refs import ImageRef, RefBatch
from imageshards.errors import user_error_in
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused


def test_keys_and_classes_that_no_input_has_end_the_build(tmp_path):
    (tmp_path / "keys.txt").write_text("a2\nx9\nx7\n")
    keys = selection.share_keys(str(tmp_path / "keys.txt"), str(tmp_path))
    batch = RefBatch([ImageRef("a1", "/in/a1", "cat"), ImageRef("a2", "/in/a2", "dog")])
    for asked, words in (
        ({"excluded": keys}, "keys.txt' with 2 of 3 keys that no input has, 'x7' among them"),
        ({"class_map": {"dgo": "pet"}}, "'dgo', which no input has; expected one of 'dog', …"),
    ):
        with pytest.raises(Exception) as error, beam.Pipeline(FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create([batch]) | selection.SelectImages(**asked)
        assert words in str(user_error_in(error.value))


def test_classes_are_renamed_and_joined():
    refs = [ImageRef("k", "k", label) for label in ("a", "c", ("a", "b", "c"), None)]
    renamed = rename_classes(RefBatch(refs), {"a": "pet", "b": "pet"}).refs
    assert [ref.label for ref in renamed] == ["pet", "c", ("c", "pet"), None]


def test_a_glob_that_leaves_nothing_out_is_refused():
    found = {"hidden", "excluded_by_glob: a: *", "excluded_by_glob: b"}
    assert check_globs(found, ["a: *", "b"])
    with refused("exclude_glob", "'c'"):
        check_globs(found, ["a: *", "c"])


def test_keys_are_read_from_lines_and_a_dataset(tmp_path):
    every = read_keys(str(Dataset(tmp_path / "a").directory))
    assert len(every) == 30 and every == sorted(every)
    (tmp_path / "keys.txt").write_bytes("\ufeffcat/ü 1.jpg\r\n\r\n#2\n".encode())
    assert read_keys(str(tmp_path / "keys.txt")) == ["#2", "cat/ü 1.jpg"]
    odd = ["a\x0bb", "a\x85b", "a\u2028b", "a\rb"]
    (tmp_path / "odd.txt").write_bytes("\n".join(odd).encode())
    assert read_keys(str(tmp_path / "odd.txt")) == sorted(odd)


def test_a_file_that_names_no_keys_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    for name in ("absent.txt", "empty.txt", "bytes.txt"):
        with refused("exclude", name):
            read_keys(str(tmp_path / name))
