"""The command line: every flag changes what is built, and what is wrong is said in a sentence."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies

from beam_pipeline import cli
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions
from imageshards.errors import UserError

BASE = ["--input", "/in", "--output", "/out"]

# Flag and value → where the options change, and to what.
CHANGES = {
    ("--input", "/other"): ("more_sources", (InputOptions("/other"),)),
    ("--layout", "flat"): ("source.layout", "flat"),
    ("--label_regex", "^(a)"): ("source.label_regex", "^(a)"),
    ("--image_column", "c"): ("source.image_column", "c"),
    ("--label_column", "c"): ("source.label_column", "c"),
    ("--key_column", "c"): ("source.key_column", "c"),
    ("--split_column", "c"): ("source.split_column", "c"),
    ("--group_column", "c"): ("source.group_column", "c"),
    ("--columns", "a:int[]"): ("source.columns", (ColumnSpec("a", "int", None),)),
    ("--exclude", "/keys.txt"): ("exclude", "/keys.txt"),
    ("--class_map", "a\\, x=b,c=b"): ("class_map", {"a, x": "b", "c": "b"}),
    ("--extensions", "jpg,PNG"): ("source.extensions", (".jpg", ".png")),
    ("--resize_mode", "pad"): ("image.resize_mode", "pad"),
    ("--only_shrink",): ("image.only_shrink", True),
    ("--filter", "lanczos"): ("image.filter", "lanczos"),
    ("--quality", "75"): ("image.quality", 75),
    ("--subsampling", "4:4:4"): ("image.subsampling", "4:4:4"),
    ("--colorspace", "grey"): ("image.colorspace", "grey"),
    ("--background", "102030"): ("image.background", (16, 32, 48)),
    ("--bbox_frame", "upright"): ("image.bbox_frame", "upright"),
    ("--check_damage",): ("damage", "count"),
    ("--reject_damaged",): ("damage", "reject"),
    ("--max_image_mpx", "0.5"): ("image.max_pixels", 500_000),
    ("--max_image_mb", "2"): ("image.max_bytes", 2 * 2**20),
    ("--splits", "a=0.5,b=0.5"): ("plan.splits", {"a": 0.5, "b": 0.5}),
    ("--salt", "s"): ("plan.salt", "s"),
    ("--num_shards", "train=4"): ("plan.num_shards", {"train": 4}),
    ("--shard_mb", "64"): ("plan.shard_mb", 64.0),
    ("--shard_by", "class"): ("plan.shard_by", "class"),
    ("--class_names", "b\\, x,a"): ("plan.class_names", ("b, x", "a")),
    ("--allow_one_class",): ("plan.allow_one_class", True),
    ("--first_label", "1"): ("plan.first_label", 1),
    ("--url_timeouts", "1,2.5,9"): ("urls.url_timeouts", (1.0, 2.5, 9.0)),
    ("--url_retries", "0"): ("urls.url_retries", 0),
    ("--url_requests_per_host", "2"): ("urls.url_requests_per_host", 2),
    ("--allow_private_hosts",): ("urls.allow_private_hosts", True),
    ("--transform_module", "m.py"): ("transform_module", "m.py"),
    ("--transform_temp_dir", "gs://b/t/"): ("transform_temp_dir", "gs://b/t"),
    ("--output", "/elsewhere"): ("output", "/elsewhere"),
    ("--compression", "gzip"): ("compression", "gzip"),
    ("--max_reject_fraction", "0.5"): ("max_reject_fraction", 0.5),
    ("--no_quarantine_bytes",): ("quarantine_bytes", False),
    ("--no_report",): ("report", False),
    ("--overwrite",): ("overwrite", True),
    ("--plan_only",): ("plan_only", True),
    ("--license", "CC0-1.0"): ("about.license", "CC0-1.0"),
    ("--creator", "Ada"): ("about.creator", ("Ada",)),
    ("--description", "Insects."): ("about.description", "Insects."),
    ("--url", "https://a.org/b"): ("about.url", "https://a.org/b"),
    ("--date_published", "2026-11-22"): ("about.date_published", "2026-11-22"),
}


def flat(options: BuildOptions) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name == "more_sources":
            # What is of them all is compared in the first.
            value = tuple(InputOptions(source.input) for source in value)
        if field.name == "given":
            continue
        if dataclasses.is_dataclass(value):
            found |= {
                f"{field.name}.{inner.name}": getattr(value, inner.name)
                for inner in dataclasses.fields(value)
            }
        else:
            found[field.name] = value
    return found


@pytest.mark.parametrize(("flags", "change"), CHANGES.items())
def test_a_flag_changes_its_option_and_no_other(flags, change):
    before = flat(cli.parse(BASE)[0])
    after = flat(cli.parse([*BASE, *flags])[0])
    assert {name: v for name, v in after.items() if v != before[name]} == dict([change])


def test_image_size_sets_height_and_width():
    image = cli.parse([*BASE, "--image_size", "32x48"])[0].image
    assert (image.height_px, image.width_px) == (32, 48)


def test_every_flag_is_tested_above_and_explained():
    actions = cli.make_parser()._actions
    flags = {string for action in actions for string in action.option_strings}
    assert flags - {"-h", "--help", "--version"} == {c[0] for c in CHANGES} | {"--image_size"}
    assert all(action.help for action in actions)


def test_every_option_has_a_flag():
    by_the_build = {
        "plan.pinned_classes", "image.height_px", "image.width_px", "copied",
        "source.fingerprint", "source.read_from", "source.keeps_splits", "source.input",
        "source.record_columns", "source.tells_given_splits",
    }  # fmt: skip
    assert set(flat(cli.parse(BASE)[0])) - by_the_build == {path for path, _ in CHANGES.values()}


def test_defaults_of_flags_are_those_of_the_options():
    options, rest = cli.parse(BASE)
    assert options == BuildOptions(dataclasses.replace(options.source, input="/in"), output="/out")
    assert rest == []


def test_flags_of_beam_are_left_for_beam():
    options, rest = cli.parse(["--runner", "FlinkRunner", *BASE, "--parallelism=4", "--quality=9"])
    assert options.image.quality == 9
    assert rest == ["--runner", "FlinkRunner", "--parallelism=4"]


def test_a_beginning_of_a_flag_is_not_that_flag():
    assert cli.parse([*BASE, "--qual", "9"]) == (cli.parse(BASE)[0], ["--qual", "9"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--output", "o"], ["--input", "required"]),
        (["--input", "i"], ["--output", "required"]),
        ([*BASE, "--class_map", "a"], ["--class_map", "'a' becomes ''", "old=new"]),
        ([*BASE, "--class_map", "a=b,a=c"], ["--class_map", "each old one once"]),
        ([*BASE, "--class_map", "a=b,b=a"], ["--class_map", "a=b and b=a", "two builds"]),
        ([*BASE, "--class_map", "a=a"], ["--class_map received a=a;", "keeps its name"]),
        ([*BASE, "--class_map", "no/such.csv"], ["--class_map", "cannot be read", "old,new"]),
        ([*BASE, "--quality", "good"], ["--quality", "'good'"]),
        ([*BASE, "--quality", "0"], ["--quality", "1 to 100"]),
        ([*BASE, "--filter", "sharp"], ["--filter", "'sharp'", "bicubic"]),
        ([*BASE, "--image_size", "big"], ["--image_size", "'big'"]),
        ([*BASE, "--image_size"], ["--image_size", "expected one argument"]),
        ([*BASE, "--shard_mb", "much"], ["--shard_mb", "'much'"]),
        ([*BASE, "--shard_mb", "-1"], ["--shard_mb", "-1"]),
        ([*BASE, "--max_image_mpx", "nan"], ["--max_image_mpx", "nan"]),
        ([*BASE, "--max_image_mb", "inf"], ["--max_image_mb", "inf"]),
        ([*BASE, "--max_image_mpx", "-3"], ["--max_image_mpx", "-3"]),
        ([*BASE, "--url_timeouts", "1,2"], ["--url_timeouts", "'1,2'", "three numbers"]),
        ([*BASE, "--url_timeouts", "1,0,2"], ["--url_timeouts", "above 0"]),
        ([*BASE, "--url_retries", "-1"], ["--url_retries", "-1"]),
        ([*BASE, "--url_requests_per_host", "0"], ["--url_requests_per_host", "at least 1"]),
        ([*BASE, "--splits", "train=2"], ["--splits", "train=2"]),
        ([*BASE, "--num_shards", "none"], ["--num_shards", "'none'"]),
        ([*BASE, "--num_shards", "0"], ["--num_shards", "0", "99999"]),
        ([*BASE, "--input", ""], ["--input", "''"]),
        ([*BASE, "--output", ""], ["--output", "''"]),
        ([*BASE, "--extensions", ""], ["--extensions"]),
        ([*BASE, "--plan_only=yes"], ["--plan_only"]),
    ],
)
def test_a_wrong_value_is_one_sentence_with_the_flag(argv, words):
    with pytest.raises(UserError) as error:
        cli.parse(argv)
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_help_has_units_defaults_and_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.parse(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("default: 256", "10^6 bytes", "in MiB (default: 64)", "example:", "--runner"):
        assert words in text


@pytest.mark.parametrize(
    ("text", "expected"), [("256", (256, 256)), ("32x48", (32, 48)), (" 7 ", (7, 7))]
)
def test_sizes(text, expected):
    assert cli.parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ffffff", (255, 255, 255)), ("#102030", (16, 32, 48)), ("00FF7f", (0, 255, 127))],
)
def test_colors(text, expected):
    assert cli.parse_color(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", {"*": 8}),
        ("train=64,validation=8", {"train": 64, "validation": 8}),
        (" train = 64 , validation=8", {"train": 64, "validation": 8}),
    ],
)
def test_numbers_of_shards(text, expected):
    assert cli.parse_num_shards(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
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
    assert cli.parse_columns(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("jpg", (".jpg",)), ("jpg,.PNG", (".jpg", ".png")), ("*.tif, webp", (".tif", ".webp"))],
)
def test_extensions(text, expected):
    assert cli.parse_extensions(text) == expected


def test_paths_become_absolute_but_uris_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cli.parse_path("--input", "a/../b") == os.path.join(tmp_path, "b")
    assert cli.parse_path("--input", "~/b") == "/home/somebody/b"
    assert cli.parse_path("--input", "gs://bucket/a") == "gs://bucket/a"
    assert cli.parse_path("--input", "file:///data/a%20b") == "/data/a b"


WRONG: list[tuple[Callable[[str], object], str]] = [
    (cli.parse_size, t)
    for t in ("", "x", "12x", "-5", "1.5", "3x4x5", "٣", "²", "9" * 5000)
]  # fmt: skip
WRONG += [(cli.parse_color, t) for t in ("", "fff", "white", "##ffffff", "gggggg")]
WRONG += [
    (cli.parse_num_shards, t)
    for t in ("", "²", "-3", "1.5", "train", "train=", "train=x", "=3", "a=1,a=2", "a=1,", "9" * 11)
]
WRONG += [(cli.parse_extensions, t) for t in ("", ",", "jpg,,png", ".")]
WRONG += [
    (cli.parse_columns, t)
    for t in ("a", "a:", ":int", "a:int[", "a:int[x]", "a:int[-1]", "a:int[0]", "a:int:zscore",
              "a:float:zscore:x", "a:float[]x", "a:text")
]  # fmt: skip
WRONG += [(lambda t: cli.parse_pairs("--splits", float, t), t) for t in ("", "a", "a=b", "0.5")]
WRONG += [(lambda t: cli.parse_path("--input", t), t) for t in ("", " ")]
WRONG += [
    (lambda t: cli.parse_limit("--max_image_mb", 2**20, t), t)
    for t in ("nan", "inf", "-1", "0", "1e-9", "", "many")
]


@pytest.mark.parametrize(("parse", "text"), WRONG)
def test_a_value_that_cannot_be_is_one_sentence_with_its_flag(parse, text):
    with pytest.raises(UserError, match=r"^--\w+ .*received") as error:
        parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["5", "[1, 2]", '["ab", "cd"]', "{}", '{"a": 1}', '{"a": {}}'])
def test_a_class_map_of_json_is_an_object_of_names(tmp_path, text):
    path = tmp_path / "classes.json"
    path.write_text('{"a": "b", "c": "b"}')
    assert cli.parse_class_map(str(path)) == {"a": "b", "c": "b"}
    path.write_text(text)
    with pytest.raises(UserError, match=r"--class_map .*classes\.json.*expected"):
        cli.parse_class_map(str(path))


@pytest.mark.parametrize(
    "parse",
    [
        cli.parse_size, cli.parse_color, cli.parse_num_shards, cli.parse_extensions,
        cli.parse_columns, lambda t: cli.parse_pairs("--splits", float, t),
    ],
)  # fmt: skip
@hypothesis.given(text=strategies.text(max_size=12))
def test_any_other_text_is_a_value_or_a_sentence(parse, text):
    try:
        parse(text)
    except UserError as e:
        assert str(e).startswith("--")
