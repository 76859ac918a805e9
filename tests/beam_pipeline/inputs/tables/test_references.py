"""From an image table to references with typed columns."""

import csv
import json
import os
import pathlib
import threading
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_pipeline.images.read import read_images
from beam_pipeline.inputs.listing import schema_of
from beam_pipeline.inputs.tables.boxes import merge_boxes
from beam_pipeline.inputs.tables.references import read_refs
from beam_pipeline.inputs.tables.roles import TableSchema
from beam_pipeline.inputs.tables.schema import INFERENCE_ROWS, read_schema, table_files
from beam_pipeline.options import ColumnSpec, InputOptions
from beam_pipeline.planning.refs import MISSING, ImageRef
from imageshards import tables
from imageshards.manifest import OBJECT_PREFIX
from imageshards.tables import Part
from tests.support.errors import refused
from tests.support.listings import listed, put
from tests.support.stores import store_uri

BOX = "image/object/bbox/"
SIDES = [BOX + side for side in ("xmin", "xmax", "ymin", "ymax")]
CLASS = "image/object/class/text"

ROWS: list[dict[str, Any]] = [
    {
        "image": "a b.jpg", "label": "cat", "age": 1.5, "tokens": [1, 2, 3],
        "embedding": [0.5, 1.0],
        "caption": 'a "cat", sitting\nstill', **dict.fromkeys(SIDES, [0.25]),
    },
    {
        "image": "sub/č.jpg", "label": "dog", "age": 2.0, "tokens": [], "embedding": [0.0, -1.0],
        "caption": "", **dict.fromkeys(SIDES, []),
    },
]  # fmt: skip


def write(path: pathlib.Path, rows: list[dict]) -> pathlib.Path:
    if path.suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(rows[0])
            for row in rows:
                writer.writerow(json.dumps(v) if isinstance(v, list) else v for v in row.values())
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        types = {
            "age": pa.float32(), "tokens": pa.large_list(pa.int32()),
            "embedding": pa.list_(pa.float32(), 2), "label": pa.dictionary(pa.int8(), pa.string()),
            **dict.fromkeys(SIDES, pa.list_(pa.float32())),
        }  # fmt: skip
        fields = [pa.field(name, types.get(name, pa.string())) for name in rows[0]]
        parquet.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), path)
    return path


def refs(path: object, class_names: tuple[str, ...] = (), **options) -> list[ImageRef]:
    source = InputOptions(str(path), **options)
    return only_refs(source.input, schema_of(source, class_names))


def only_refs(*arguments) -> list[ImageRef]:
    return [each for each in read_refs(*arguments) if isinstance(each, ImageRef)]


def text(path: pathlib.Path, content: str) -> pathlib.Path:
    path.write_text(content, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_three_formats_give_the_same_references(tmp_path, suffix):
    path = write(tmp_path / f"m{suffix}", ROWS)
    schema = read_schema(InputOptions(str(path)))
    length = (2,) if suffix == ".parquet" else None  # the others know lists only
    assert schema == TableSchema(
        "image", "label", None, None, None,
        (
            ColumnSpec("age", "float"), ColumnSpec("tokens", "int", None),
            ColumnSpec("embedding", "float", length), ColumnSpec("caption", "string"),
            *(ColumnSpec(side, "float", None) for side in SIDES), ColumnSpec(CLASS, "string", None),
        ),
        cells_of={CLASS: "label"},
    )  # fmt: skip
    for ref, row in zip(refs(path), ROWS, strict=True):
        assert (ref.key, ref.label) == (row["image"], row["label"])
        assert ref.uri == f"{tmp_path}/{row['image']}"
        assert (ref.split, ref.group, ref.size_bytes) == (None, None, -1)
        columns = {name: row[name] for name in row if name not in ("image", "label")}
        columns[CLASS] = [row["label"]] * len(row[SIDES[0]])
        assert ref.columns == columns
        assert list(map(type, columns.values())) == list(map(type, dict(ref.columns).values()))


def test_an_image_is_a_path_or_an_address_and_is_missing_only_where_its_path_ends(tmp_path):
    (tmp_path / "x y.jpg").write_bytes(b"12345")
    here, mtime_ns = f"{tmp_path}/x y.jpg", os.stat(tmp_path / "x y.jpg").st_mtime_ns
    expected = {
        "x y.jpg": (here, 5, mtime_ns),
        here: (here, 5, mtime_ns),
        f"file://{tmp_path}/x%20y.jpg": (here, 5, mtime_ns),
        "./gone.jpg": (f"{tmp_path}/gone.jpg", -1, MISSING),
        "x y.jpg/z": (f"{here}/z", -1, MISSING),
        "gs://bucket/x.jpg": ("gs://bucket/x.jpg", -1, 0),
        "https://h/x.jpg": ("https://h/x.jpg", -1, 0),
        "a\0b": (f"{tmp_path}/a\0b", -1, 0),
        "x" * 300: (f"{tmp_path}/{'x' * 300}", -1, 0),
    }
    found = refs(write(tmp_path / "m.csv", [{"image": name, "label": "a"} for name in expected]))
    assert {ref.key: (ref.uri, ref.size_bytes, ref.mtime_ns) for ref in found} == expected


OUTSIDE = (
    "/etc/passwd ../x.jpg sub/../../x.jpg link/../../x.jpg .. file:///etc/passwd FILE:///etc/passwd"
    " file:///{folder}/%2e%2e/x.jpg {folder}er/x.jpg ./a://../../../x.jpg"
    " {folder}/a://../../../x.jpg"
)


@pytest.mark.parametrize("image", OUTSIDE.split())
def test_a_path_out_of_the_tables_folder_needs_the_users_trust(tmp_path, monkeypatch, image):
    folder = tmp_path / "table"
    (folder / "sub").mkdir(parents=True)
    (folder / "a:").mkdir()
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "x.jpg").write_bytes(b"secret")
    monkeypatch.chdir(folder)
    image = image.format(folder=folder)
    path = write(folder / "m.csv", [{"image": image, "label": "a"}])
    (ref,) = refs(path, allow_any_path=True)
    with refused("", "line 2", repr(image)[:40], repr(ref.uri), repr(str(folder))):
        refs(path)
    assert ref.uri == os.path.normpath(ref.uri)  # what the system opens is what was checked


def test_a_table_in_a_store_names_no_file_of_this_machine(tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"12345")
    for image in (f"{tmp_path}/x.jpg", f"file://{tmp_path}/x.jpg"):
        write(tmp_path / "m.csv", [{"image": image, "label": "a"}])
        with refused("", "outside of the folder 'teststore://", "allow_any_path"):
            refs(store_uri(tmp_path / "m.csv"))
        assert refs(store_uri(tmp_path / "m.csv"), allow_any_path=True)[0].size_bytes == 5


def test_symbolic_links_below_the_tables_folder_and_above_it_are_followed(tmp_path):
    for name in ("real", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(b"12345")
    (tmp_path / "real" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    images = ["link/x.jpg", "link/../x.jpg", f"{tmp_path}/real/x.jpg", f"{tmp_path}/alias/x.jpg"]
    write(tmp_path / "real" / "m.csv", [{"image": image, "label": "a"} for image in images])
    assert [ref.size_bytes for ref in refs(tmp_path / "alias" / "m.csv")] == [5, 5, 5, 5]


def test_a_name_is_found_in_either_normal_form(tmp_path):
    composed, decomposed = "\u00e9lan \u00e5.jpg", "e\u0301lan a\u030a.jpg"
    for folder, there in (("nfc", composed), ("nfd", decomposed)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / there).write_bytes(b"12345")
        rows = [{"image": name, "label": "a"} for name in (composed, decomposed, "n\u00e9.jpg")]
        found = refs(write(tmp_path / folder / "m.csv", rows))
        assert [ref.uri for ref in found[:2]] == [f"{tmp_path}/{folder}/{there}"] * 2
        assert [ref.size_bytes for ref in found] == [5, 5, -1]
        assert [ref.key for ref in found] == [row["image"] for row in rows]
        assert found[2].uri == f"{tmp_path}/{folder}/n\u00e9.jpg"


def test_roles_by_name_and_by_flag_of_texts_and_numbers(tmp_path):
    path = text(tmp_path / "m.csv", "id,filename,class,split,person\n7,x.jpg,a,train,p1\n")
    (ref,) = refs(path)
    assert (ref.key, ref.uri, ref.label, ref.split, ref.group, ref.columns) == (
        "7", f"{tmp_path}/x.jpg", "a", "train", None, {"person": "p1"},
    )  # fmt: skip
    (ref,) = refs(path, group_column="person", key_column="filename", label_column="split",
                  split_column="class", image_column="filename")  # fmt: skip
    assert (ref.key, ref.label, ref.split, ref.group) == ("x.jpg", "train", "a", "p1")
    assert ref.columns == {"id": 7}
    rows: list[dict] = [
        {"image": "x", "label": 3, "key": 12, "split": "", "g": None},
        {"image": "y", "label": "007", "key": "b", "split": None, "g": "p"},
    ]
    expected = [("12", "3", None, None), ("b", "007", None, "p")]
    found = refs(write(tmp_path / "m.jsonl", rows), group_column="g")
    assert [(ref.key, ref.label, ref.split, ref.group) for ref in found] == expected


def test_names_of_roles_are_found_in_any_case_and_first_in_the_exact_one(tmp_path):
    content = "Path,Label,Split,ID,label \nx.jpg,a,train,7,b\n"
    (ref,) = refs(text(tmp_path / "m.csv", content))
    assert (ref.key, ref.label, ref.split, ref.columns) == ("7", "a", "train", {"label ": "b"})
    (ref,) = refs(text(tmp_path / "m.csv", "Label,label,PATH,path\na,b,x,y\n"))
    assert (ref.key, ref.label, ref.columns) == ("y", "b", {"Label": "a", "PATH": "x"})


def test_declared_columns_have_their_type_and_dropped_ones_are_not_stored(tmp_path):
    path = text(tmp_path / "m.csv", "image,label,age,zip,junk\nx,a,1,007,?\n")
    (ref,) = refs(path, columns=(ColumnSpec("zip", "string"), ColumnSpec("age", "float")))
    assert ref.columns == {"age": 1.0, "zip": "007", "junk": "?"}
    (ref,) = refs(path, columns=(ColumnSpec("age", "float"),), drop_column=("zip", "junk"))
    assert ref.columns == {"age": 1.0}
    for name in ("label", "zap", "age"):
        with refused("drop_column", repr(name), "'zip', 'junk'"):
            refs(path, columns=(ColumnSpec("age", "float"),), drop_column=(name,))
    assert [ref.columns for ref in refs(path, columns=())] == [None]
    assert [ref.columns for ref in refs(path)] == [{"age": 1, "zip": "007", "junk": "?"}]


DECIMAL_COMMA = "column 'age' of --input is taken as text"
DECIMAL_LABELS = "column 'label' of --input has numbers such as 0.37"
UNDECLARED = 'image,label,age,zip,tags,seen\na,cat,1,007,"[""x""]",0.5\n'
COMMAS = "image;label;age;note\nx;a;0,5;b\ny;a;2;c, d\n"


@pytest.mark.parametrize(
    ("content", "columns", "warning"),
    [
        (UNDECLARED, ("age:int",), ""),
        (UNDECLARED, None, ""),  # all of them
        (UNDECLARED, (), ""),  # none of them
        (COMMAS, None, DECIMAL_COMMA),
        (COMMAS, ("age:string", "note:string"), ""),
        ("image,label\na,-1\na,\na,0.37\n", None, DECIMAL_LABELS),
        ("image,label\na,cat\na,1.5\n", None, ""),
        ("image,label\na,1\na,N/A\na,\n", None, ""),
        ("image,label\na,007\na,1.5\n", None, ""),
        ("image,label\na,[1]\na,cat\n", None, ""),
    ],
)
def test_odd_columns_and_labels_are_warned_of(tmp_path, content, columns, warning):
    if columns is not None:
        columns = tuple(ColumnSpec(*each.split(":")) for each in columns)
    source = InputOptions(str(text(tmp_path / "m.csv", content)), columns=columns)
    warnings = read_schema(source).warnings
    assert len(warnings) == bool(warning) and "".join(warnings).startswith(warning)


def test_an_undeclared_column_may_have_an_unsupported_type(tmp_path):
    path = tmp_path / "m.parquet"
    table = pa.table({"image": ["x"], "label": ["a"], "age": [1], "meta": [{"a": 1}]})
    parquet.write_table(table, path)
    with refused("input", "'meta'", "struct", "drop_column='meta'"):
        refs(path)
    (ref,) = refs(path, drop_column=("meta",))
    assert ref.columns == {"age": 1}


PIXELS, XYWH = {"bbox_format": "pixels"}, {"bbox_format": "xywh"}


@pytest.mark.parametrize(
    ("names", "options", "cells", "sides"),
    [
        ("xmin,ymin,xmax,ymax", {}, [0.1, 0.2, 0.5, 0.75], (0.1, 0.5, 0.2, 0.75)),
        ("XMin,XMax,YMin,YMax", {}, [0.1, 0.5, 0.2, 0.75], (0.1, 0.5, 0.2, 0.75)),
        ("x_max,X_MIN,y_max, y_min", PIXELS, [50, 10, 75, 20], (10, 50, 20, 75)),
        (",".join(SIDES), PIXELS, [10, 50, 20, 75], (10, 50, 20, 75)),
        ("x,y,w,h", XYWH, [10, 20, 40, 55.5], (10, 50, 20, 75.5)),
        ("height,width,Y,X", XYWH, [55, 40, 20, 10], (10, 50, 20, 75)),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("is_list", [False, True])
def test_boxes_of_plain_names(tmp_path, names, options, cells, sides, suffix, is_list):
    given = [[cell, cell] if is_list else cell for cell in cells]
    row = {"image": "x", "label": "a b", **dict(zip(names.split(","), given, strict=True))}
    path = tmp_path / f"m{suffix}"
    if suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist([row]), path)
    else:
        write(path, [row])
    schema = read_schema(InputOptions(str(path), **options))
    assert schema.box_a_row is not is_list
    (ref,) = refs(path, **options)
    found = dict(ref.columns or {})
    assert found.pop(CLASS) == ["a b"] * (1 + is_list)
    assert found == {s: [v] * (1 + is_list) for s, v in zip(SIDES, sides, strict=True)}
    assert (ref.label, ref.in_pixels) == ("a b", bool(options))


def test_an_id_of_each_box_is_refused_as_key_unless_it_is_named(tmp_path):
    rows = [{"id": i, "image": "x", "label": "a"} | dict.fromkeys(SIDES, 0.5) for i in (7, 8)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "m.parquet")
    path = write(tmp_path / "m.csv", rows)
    for table in (path, tmp_path / "m.parquet"):
        with refused("", "8", "'id'", "'x'", "key_column='image'"):
            refs(table)
        assert [ref.key for ref in refs(table, key_column="id")] == ["7", "8"]
        assert [ref.key for ref in refs(table, key_column="image")] == ["x", "x"]


def test_columns_may_say_that_plain_sides_are_ordinary_numbers_or_boxes(tmp_path):
    path = text(tmp_path / "m.csv", "image,label,xmin,ymin,xmax,ymax\nx,a,7,8,9,10\n")
    (ref,) = refs(path, columns=(ColumnSpec("xmin", "int"),), drop_column=("ymax",))
    assert ref.columns == {"xmin": 7, "ymin": 8, "xmax": 9}
    declared = tuple(ColumnSpec(name, "float", None) for name in SIDES)
    source = InputOptions(str(path), columns=declared, bbox_format="pixels")
    assert read_schema(source).warnings == ()
    (ref,) = refs(path, columns=declared, bbox_format="pixels")
    sides = dict(zip(SIDES, [[7], [9], [8], [10]], strict=True))
    assert ref.columns == sides | {CLASS: ["a"]}
    (ref,) = refs(path, bbox_format="pixels", drop_column=(CLASS,))
    assert ref.columns == sides


BOXES = "image,label,note,image/object/age,xmin,ymin,xmax,ymax\n"
OF_ONE_IMAGE = "x,traffic light,n,1,0,0,1,0.5\nx,a,n,2,0,0,0.5,1\n"


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (OF_ONE_IMAGE, {}, ["'traffic light'", "'a'", "'label'", "'x'", "label='several'"]),
        ("x,a,n,1,0,0,1,1\nx,a,m,1,0,0,1,1\n", {}, ["'n'", "'m'", "'x'", "image/object/note"]),
        ("x,a,n,1,0,0,1,1\nx,a,m,1,0,0,1,1\n", {"split_column": "note"}, ["'n'", "'m'", "'note'"]),
    ],
)  # fmt: skip
def test_rows_of_one_image_that_differ_are_refused(tmp_path, content, options, words):
    path = text(tmp_path / "m.csv", BOXES + content)
    with refused("input", *words):
        merge_boxes(refs(path, **options), read_schema(InputOptions(str(path), **options)))


H = "image,label,age\n"
J = '{"image": "x", "label": "a", "age": 1}\n'
B = f"image,label,{','.join(SIDES)}\n"
COLUMNS = {"columns": (ColumnSpec("age", "int"),)}
SCALARS = tuple(ColumnSpec(side, "float") for side in SIDES)
SEVERAL = {"label": "several"}


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("", {}, ["no row"]),
        ("pic,label\nx,a\n", {}, ["no image column", "'pic', 'label'", "image_column"]),
        ("image,target\nx,a\n", {}, ["no label column", "'target'", "label_column"]),
        (H + "x,a,1\n", {"label_column": "x"}, ["label_column", "'x'", "'age'"]),
        (H + "x,a,1\n", {"columns": (ColumnSpec("b", "int"),)}, ["columns", "'b'"]),
        ("image,label,image/height\nx,a,1\n", {}, ["'image/height'", "rename"]),
        (H + "x,a,1\ny,b,\n", COLUMNS, ["line 3", "''", "columns='age:float'"]),
        # Types are inferred from the first rows, which later ones must fit.
        (H + "x,a,1\n" * INFERENCE_ROWS + "y,b,\n", {}, ["line 1002", "''", "columns='age:float'"]),
        (H + "x,a,1\n,b,2\n", {}, ["line 3", "'image'", "not empty"]),
        (J + '{"image": "y", "age": 2}\n', {}, ["line 2", "None", "'label'"]),
        (J + '{"image": "y", "label": 0.5, "age": 1}', {}, ["line 2", "0.5", "'label:float'"]),
        (J + '{"image": "y", "label": NaN, "age": 1}', {}, ["line 2", "nan", "fill it"]),
        (J + '{"image": {"path": "y"}, "label": 1}', {}, ["line 2", "'path'", "text"]),
        ("x/a.jpg,cat\nx/b.jpg,cat\n", {}, ["'x/a.jpg'", "first line looks like a row"]),
        ("Id,Label\na.JPG,cat\n", {}, ["no image column", "image_column='Id' holds"]),
        ("image,cat,dog\nx,1.0,0.0\n", {}, ["'cat', 'dog' hold 0 and 1", "one-hot"]),
        (J + '{"image": "\\ud800", "label": "b", "age": 1}', {}, ["line 2", "'image'"]),
        ("image,label,split\nx,a,my split\n", {}, ["line 2", "'my split'", "letters"]),
        (B + 'x,a,0,1,0,1\ny,b,"[0,0]",1,0,1\n', {}, ["line 3", "different number"]),
        ("image,label,XMin,YMin,XMax,YMax\nx,a,0,10,20,30\n", {}, ["line 2", "'XMax'", "'pixels'"]),
        (B + "x,a,0,nan,0,1\n", PIXELS, ["line 2", "nan", "numbers of pixels"]),
        (B + "x,,0,1,0,1\n", {"label": "none"}, ["line 2", "'label'", "not empty"]),
        (B + "x,a,0,1,0,1\n", XYWH, ["bbox_format", "xywh", "x, y, width, height"]),
        (H + "x,a,1\n", PIXELS, ["bbox_format", "pixels", "xmin, ymin, xmax, ymax"]),
        (H + "x,a,1\n", {"label": "none", "label_column": "label"}, ["label_column", "'none'"]),
        (f"image,label,{SIDES[0]}\nx,a,0\n", {}, [SIDES[0], "without", SIDES[1]]),
        ('image,label\na,"[""cat""]"\n', {}, ["line 2", "'[\"cat\"]'", "label='several'"]),
        ("image,label\na,b\n", SEVERAL, ["line 2", "'b'", "list", "label_separator"]),
        ('image,label\na,"[""cat""]"\n', {"label_separator": ","}, ["line 2", "label_separator"]),
        (B + "x,a,0,1,0,1\n", {"columns": SCALARS}, ["columns", f"{SIDES[0]}:float[]"]),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_in_one_sentence(tmp_path, content, options, words):
    name = "m.jsonl" if content.startswith("{") else "m.csv"
    with refused(None, *words) as error:
        refs(text(tmp_path / name, content), **options)
    str(error.value).encode()


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, None, 3], pa.int32(), "float"),
        ([1, 2, 3], pa.int32(), "int"),
        ([True, None, False], pa.bool_(), "float"),
        ([2**24 + 1, None, 3], pa.int64(), "int"),
        ([None, None, None], pa.int64(), "float"),
        ([1.5, None, 3.0], pa.float64(), "float"),
    ],
)
def test_whole_numbers_of_parquet_with_nulls_are_floats(tmp_path, values, kind, expected):
    table = pa.table(
        {"image": ["x", "y", "z"], "label": ["a", "b", "a"], "n": pa.array(values, kind),
         OBJECT_PREFIX + "n": pa.array([1, None, 2])}
    )  # fmt: skip
    parquet.write_table(table, tmp_path / "m.parquet", row_group_size=1)
    found = read_schema(InputOptions(str(tmp_path / "m.parquet")))
    assert found.columns[0] == ColumnSpec("n", expected)
    assert found.columns[1].kind == "int"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("where", [str, store_uri])
def test_a_glob_of_files_is_one_table(tmp_path, suffix, where):
    put(tmp_path, f"a/.hidden{suffix}", f"b/.hidden{suffix}", f".tmp/part{suffix}")
    for name, rows in (("b", ROWS[1:]), ("a", ROWS[:1])):
        write(tmp_path / name / f"rows{suffix}", rows)
    assert len(list(table_files(f"{tmp_path}//a/*{suffix}"))) == 1
    pattern = where(tmp_path / f"*/*{suffix}")
    assert list(table_files(pattern)) == [where(tmp_path / name / f"rows{suffix}") for name in "ab"]
    # Paths are relative to the file that names them.
    uris = {key: ref.uri for key, ref in listed(pattern)[0].items()}
    names = {row["image"]: folder for folder, row in zip("ab", ROWS, strict=True)}
    assert uris == {name: where(tmp_path / names[name] / name) for name in names}
    with refused("input", "*.none"):
        read_schema(InputOptions(where(tmp_path / "*.none"), layout="table"))


def test_paths_of_windows_are_read_and_warned_of_once(tmp_path):
    put(tmp_path, "photos/cat/0.jpg", "photos/cat/1.jpg", "photos/odd\\name.jpg")
    images = [f"photos\\cat\\{n}.jpg" for n in (0, 1, 9)] + ["photos/odd\\name.jpg"]
    rows = [{"image": image, "label": "cat"} for image in images]
    found, skipped = listed(write(tmp_path / "rows.csv", rows))
    assert {key: ref.mtime_ns == MISSING for key, ref in found.items()} == {
        "photos/cat/0.jpg": False, "photos/cat/1.jpg": False, "photos\\cat\\9.jpg": True,
        "photos/odd\\name.jpg": False,
    }  # fmt: skip
    assert skipped.pop(f"backslashes: {tmp_path}/rows.csv") == 1 and not skipped


def test_labels_lose_the_spaces_around_them_and_numbers_get_their_names(tmp_path):
    path = text(tmp_path / "rows.csv", "image,label\na.jpg, cat \nb.jpg,1\nc.jpg,0\n")
    assert [ref.label for ref in refs(path)] == ["cat", "1", "0"]
    assert [ref.label for ref in refs(path, ("cat", "dog"))] == ["cat", "dog", "cat"]
    with refused("", "line 3 has 1", "'label'", "0 to 0"):
        refs(path, ("cat",))


PICTURES = [b"first", None, b"the third"]


def parquet_with(path: pathlib.Path, image: pa.Array, **more) -> str:
    columns = {"image": image, "label": pa.array(["a", "b", "a"])} | more
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return str(path)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("paths", [None, ["x.jpg", None, "z.jpg"]])
def test_pictures_of_a_parquet_file_are_ranges_of_spooled_files(tmp_path, kind, paths):
    image: pa.Array = pa.array(PICTURES, kind)
    if paths:
        image = pa.StructArray.from_arrays([image, pa.array(paths)], ["bytes", "path"])
    path = parquet_with(tmp_path / "test-00000-of-00001.parquet", image, age=pa.array([1, 2, 3]))
    schema = read_schema(InputOptions(path))
    assert schema.has_pictures and schema.columns == (ColumnSpec("age", "int"),)
    refs: list[ImageRef] = []
    for groups in (range(1), range(1, 2)):
        refs += only_refs(path, schema, Part(groups, ""), str(tmp_path / "spool"))
    keys = [f"test-00000-of-00001.parquet row {n}" for n in (1, 2, 3)]
    assert [ref.key for ref in refs] == (["x.jpg", keys[1], "z.jpg"] if paths else keys)
    assert [ref.columns for ref in refs] == [{"age": n} for n in (1, 2, 3)]
    assert {(ref.split, ref.uri) for ref in refs} == {("test", path)}
    assert [data for _, data in read_images(refs, 100)] == [b"first", b"", b"the third"]
    assert len(list((tmp_path / "spool").iterdir())) == 2
    with refused("input", "ListImages", "spool"):
        list(read_refs(path, schema))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image": pa.array(PICTURES)}, ["'label'"]),
        ({"img": pa.array(PICTURES), "label": pa.array(["a"] * 3)}, ["'image'"]),
        ({"image": pa.array(["x"] * 3), "label": pa.array(["a"] * 3)}, ["'image'", "'x'"]),
    ],
)
def test_each_file_with_pictures_must_have_the_columns_of_the_first(tmp_path, columns, words):
    parquet_with(tmp_path / "a.parquet", pa.array(PICTURES))
    parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    with refused(None, "b.parquet", *words):
        listed(tmp_path / "*.parquet", str(tmp_path / "spool"))


def test_a_file_among_them_that_is_no_parquet_is_refused(tmp_path):
    parquet_with(tmp_path / "a.parquet", pa.array(PICTURES))
    text(tmp_path / "b.jsonl", json.dumps({"image": "", "label": "a"}))
    with refused("input", "b.jsonl", "which is no Parquet file"):
        listed(tmp_path / "*", str(tmp_path / "spool"), layout="table")


def test_pictures_are_read_in_batches_of_few_bytes(tmp_path, monkeypatch):
    asked: list[int] = []
    iter_batches = parquet.ParquetFile.iter_batches

    def noted(file: parquet.ParquetFile, rows: int, **how: object) -> object:
        asked.append(rows)
        return iter_batches(file, rows, **how)

    monkeypatch.setattr(tables, "_BATCH_BYTES", 2500)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", noted)
    pictures = pa.array([bytes([n]) * 1000 for n in range(16)])
    table = pa.table({"image": pictures, "label": ["a"] * 16})
    plain = {"use_dictionary": False, "write_statistics": False}
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=5, **plain)
    schema = read_schema(InputOptions(str(tmp_path / "a.parquet")))
    refs = only_refs(str(tmp_path / "a.parquet"), schema, None, str(tmp_path / "spool"))
    read = [data for _, data in read_images(refs, 2000)]
    assert read == [bytes([n]) * 1000 for n in range(16)]
    assert {*asked} == {2}


def hub_table(path: pathlib.Path, labels: list, feature: object, label: str = "label") -> str:
    said = {b"huggingface": json.dumps({"info": {"features": {label: feature}}}).encode()}
    images: list = [b"%d" % n for n in range(len(labels))]
    table = pa.table({"image": pa.array(images, pa.binary()), label: pa.array(labels)})
    parquet.write_table(table.replace_schema_metadata(said), path)
    return str(path)


OF_CLASSES = {"names": ["cat", "dog"], "_type": "ClassLabel"}


@pytest.mark.parametrize(
    "feature",
    [
        {"feature": OF_CLASSES, "_type": "Sequence"}, {"feature": OF_CLASSES, "_type": "List"},
        [OF_CLASSES],
    ],
)  # fmt: skip
def test_several_classes_of_a_row_have_their_names(tmp_path, feature):
    path = hub_table(tmp_path / "a.parquet", [[1, 0], [-1], [], [1, -1]], feature, "tags")
    spool = str(tmp_path / "spool")
    found, skipped = listed(path, spool, label="several", label_column="tags")
    assert [ref.label for ref in found.values()] == [("cat", "dog"), (), (), ("dog",)]
    assert not {reason for reason in skipped if reason.startswith("without_label")}


def test_rows_whose_class_is_hidden_are_left_out_with_a_note(tmp_path):
    hub_table(tmp_path / "train-1.parquet", [0, 1], OF_CLASSES)
    hub_table(tmp_path / "test-1.parquet", [-1, -1, 1], OF_CLASSES)
    found, skipped = listed(tmp_path / "*.parquet", str(tmp_path / "spool"))
    assert [ref.label for ref in found.values()] == ["dog", "cat", "dog"]
    assert skipped["without_label: label"] == 2
    # Without names of classes, -1 may be one of two classes.
    path = text(tmp_path / "rows.csv", "image,label\nx,-1\ny,1\n")
    assert [ref.label for ref in refs(path)] == ["-1", "1"]


def test_a_file_that_numbers_the_classes_in_another_way_is_refused(tmp_path):
    hub_table(tmp_path / "a.parquet", [0, 1], OF_CLASSES)
    hub_table(tmp_path / "b.parquet", [0, 1], OF_CLASSES | {"names": ["dog", "cat"]})
    with refused("input", "b.parquet", "'dog'", "'cat'"):
        listed(tmp_path / "*.parquet", str(tmp_path / "spool"))


def test_numbered_rows_of_files_with_equal_names_have_different_keys(tmp_path):
    for folder in ("train", "test"):
        (tmp_path / folder).mkdir()
        hub_table(tmp_path / folder / "0.parquet", [0, 1], OF_CLASSES)
    found, _ = listed(tmp_path / "*/*.parquet", str(tmp_path / "spool"))
    assert [*found] == [f"{of}/0.parquet row {n}" for of in ("test", "train") for n in (1, 2)]
    found, _ = listed(tmp_path / "test/0.parquet", str(tmp_path / "spool"), key_column="none")
    assert [*found] == ["0.parquet row 1", "0.parquet row 2"]
    path = text(tmp_path / "rows.csv", "image,label,id\na.jpg,cat,x\na.jpg,dog,x\n")
    keys = [ref.key for ref in refs(path, key_column="none")]
    assert keys == ["rows.csv line 2", "rows.csv line 3"]


@pytest.mark.parametrize(
    "said", [b"[" * 100_000, b"not JSON", b'{"info": {"features": {"label": {"names": 3}}}}']
)
def test_metadata_that_name_no_class_change_nothing(tmp_path, said):
    table = pa.table({"image": pa.array([b"x"], pa.binary()), "label": pa.array([4])})
    path = tmp_path / "a.parquet"
    parquet.write_table(table.replace_schema_metadata({b"huggingface": said}), path)
    schema = read_schema(InputOptions(str(path)))
    (ref,) = only_refs(str(path), schema, None, str(tmp_path / "spool"))
    assert schema.class_names == () and ref.label == "4"


def test_files_of_a_long_table_are_found_by_several_threads(tmp_path, monkeypatch):
    """A network disk answers each `stat` after a while, so several are asked for at once."""
    names = [f"{i}.jpg" for i in range(300)]
    rows = "".join(f"{name},cat\n" for name in names)
    path = text(tmp_path / "rows.csv", f"image,label\n{rows}")
    schema = schema_of(InputOptions(str(path)), ())
    meeting, find = threading.Barrier(2, timeout=60), os.stat

    def stat(where, *args, **kwargs):
        if str(where).endswith(("/0.jpg", "/299.jpg")):  # they meet, or the barrier breaks
            meeting.wait()
        return find(where, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    assert [ref.key for ref in only_refs(str(path), schema)] == names
