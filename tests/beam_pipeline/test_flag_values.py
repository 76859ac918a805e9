"""What the text of a flag stands for."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline import flag_values as values
from beam_pipeline.options import ColumnSpec
from imageshards.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"), [("256", (256, 256)), ("32x48", (32, 48)), (" 7 ", (7, 7))]
)
def test_sizes(text, expected):
    assert values.parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ffffff", (255, 255, 255)), ("#102030", (16, 32, 48)), ("00FF7f", (0, 255, 127))],
)
def test_colors(text, expected):
    assert values.parse_color(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("8", {"*": 8}),
        ("train=64,validation=8", {"train": 64, "validation": 8}),
        (" train = 64 , validation=8", {"train": 64, "validation": 8}),
    ],
)
def test_numbers_of_shards(text, expected):
    assert values.parse_num_shards(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", ()),
        ("age:float:zscore,tokens:int[]", (
            ColumnSpec("age", "float", (), "zscore"), ColumnSpec("tokens", "int", None))),
        ("v:float[3]:minmax", (ColumnSpec("v", "float", (3,), "minmax"),)),
        ("image/object/bbox/xmin:float[]", (
            ColumnSpec("image/object/bbox/xmin", "float", None),)),
        ("a caption:string", (ColumnSpec("a caption", "string"),)),
    ],
)  # fmt: skip
def test_columns(text, expected):
    assert values.parse_columns(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("jpg", (".jpg",)), ("jpg,.PNG", (".jpg", ".png")), ("*.tif, webp", (".tif", ".webp"))],
)
def test_extensions(text, expected):
    assert values.parse_extensions(text) == expected


def test_class_names_from_a_list_or_a_file(tmp_path):
    assert values.parse_class_names(None) is None
    assert values.parse_class_names("b, a,New York") == ("b", "a", "New York")
    path = tmp_path / "classes.txt"
    path.write_bytes("\ufeffdog, small\r\ncat\r\n\r\nčmelák\r\n".encode())
    assert values.parse_class_names(str(path)) == ("dog, small", "cat", "čmelák")


def test_paths_become_absolute_but_uris_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert values.parse_path("--input", "a/../b") == os.path.join(tmp_path, "b")
    assert values.parse_path("--input", "~/b") == "/home/somebody/b"
    assert values.parse_path("--input", "gs://bucket/a") == "gs://bucket/a"
    assert values.parse_path("--input", "file:///data/a%20b") == "/data/a b"


WRONG: list[tuple[Callable[[str], object], str]] = [
    (values.parse_size, t)
    for t in ("", "x", "12x", "-5", "1.5", "3x4x5", "٣", "²", "9" * 5000)
]  # fmt: skip
WRONG += [(values.parse_color, t) for t in ("", "fff", "white", "##ffffff", "gggggg")]
WRONG += [
    (values.parse_num_shards, t)
    for t in ("", "²", "-3", "1.5", "train", "train=", "train=x", "=3", "a=1,a=2", "a=1,", "9" * 11)
]
WRONG += [(values.parse_extensions, t) for t in ("", ",", "jpg,,png", ".")]
WRONG += [(values.parse_class_names, t) for t in ("", " , ", "no/such/file", "classes.txt")]
WRONG += [
    (values.parse_columns, t)
    for t in ("a", "a:", ":int", "a:int[", "a:int[x]", "a:int[-1]", "a:int[0]", "a:int:zscore",
              "a:float:zscore:x", "a:float[]x", "a:text")
]  # fmt: skip
WRONG += [(lambda t: values.parse_pairs("--splits", t, float), t) for t in ("", "a", "a=b", "0.5")]
WRONG += [(lambda t: values.parse_path("--input", t), t) for t in ("", " ")]
WRONG += [
    (lambda t: values.parse_limit("--max_image_mb", float(t), 2**20), t)
    for t in ("nan", "inf", "-1", "0", "1e-9")
]


@pytest.mark.parametrize(("parse", "text"), WRONG)
def test_a_value_that_cannot_be_is_one_sentence_with_its_flag(parse, text):
    with pytest.raises(UserError, match=r"^--\w+ .*received") as error:
        parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "parse",
    [
        values.parse_size, values.parse_color, values.parse_num_shards, values.parse_extensions,
        values.parse_columns, lambda t: values.parse_pairs("--splits", t, float),
    ],
)  # fmt: skip
@given(text=st.text(max_size=12))
def test_any_other_text_is_a_value_or_a_sentence(parse, text):
    try:
        parse(text)
    except UserError as e:
        assert str(e).startswith("--")
