"""The command line: every flag changes what is built, and what is wrong is said in a sentence."""

from __future__ import annotations

import dataclasses
import os
import re

import hypothesis
import pytest
from hypothesis import strategies

from beam_pipeline import cli
from beam_pipeline import option_texts as texts
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions
from imageshards.commands.command_line import parse_path
from imageshards.errors import UserError
from imageshards.images.options import parse_color

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


# What is refused before an input is looked at: flag, values, and the sentence for each of them.
REFUSED = [
    ("--class_map", ["a", "a=b,a=c"], "expected pairs of names as in old=new,other=new, each"),
    ("--class_map", ["a=b,b=a"], "received a=b and b=a; expected each class on one side only"),
    ("--class_map", ["a=a"], "received a=a; expected a class and another name for it"),
    ("--class_map", ["no/such.json"], "cannot be read ([Errno 2] No such file"),
    ("--quality", ["0", "101"], "expected 1 to 100."),
    ("--quality", ["good"], "invalid int value: 'good'"),
    ("--image_size", ["", "x", "12x", "-5", "1.5", "3x4x5", "٣", "²", "9" * 5000],
     "expected pixels as N or HEIGHTxWIDTH."),
    ("--image_size", ["0x256", "16385"], "expected 1 to 16384 pixels a side."),
    ("--image_size", ["8x9 --resize_mode shortest"], "expected one number, the shortest side."),
    ("--background", ["", "fff", "white", "##ffffff", "gggggg"], "expected RRGGBB, for example"),
    ("--shard_mb", ["much"], "invalid float value: 'much'"),
    ("--shard_mb", ["-1", "0", "nan"], "expected more than 0."),
    ("--max_image_mpx", ["nan", "-3", "0"], "expected a number above 0."),
    ("--max_image_mb", ["", "inf", "1e-9", "many"], "expected a number above 0."),
    ("--url_timeouts", ["1,2", "1,0,2"], "expected three numbers of seconds above 0"),
    ("--url_retries", ["-1"], "received -1; expected at least 0."),
    ("--url_requests_per_host", ["0"], "received 0; expected at least 1."),
    ("--splits", ["", "a", "0.5", "a=b"], "expected names with numbers, as in name=1,other=2."),
    ("--splits", ["train=2", "a=1.5,b=-0.5", "a=nan"], "expected a fraction above 0 and at most"),
    ("--splits", ["a=0.5,b=0.4"], "received fractions that sum to 0.9; expected 1, for example"),
    ("--splits", ["a/b=1"], "received the name 'a/b'; expected letters, digits and underscores."),
    ("--num_shards", ["", "none", "²", "-3", "1.5", "9" * 11], "expected a number, or one for"),
    ("--num_shards", ["train=", "train=x", "=3", "a=1,a=2", "a=1,"], "names with whole numbers"),
    ("--num_shards", ["0", "train=0", "100000"], "expected 1 to 99999."),
    ("--extensions", ["", ",", "jpg,,png", "."], "expected a list as in jpg,png."),
    ("--columns", ["a", "a:", ":int", "a:int[", "a:int[x]", "a:int[-1]", "a:float:zscore:x",
                   "a:float[]x"], "expected name:int|float|string, with [] or [N] for lists"),
    ("--columns", ["a:int[0]"], "a received the length 0; expected at least 1, or []"),
    ("--columns", ["a:int:zscore"], "'zscore' for a int column; expected a float column."),
    ("--columns", ["a:text"], "a received 'text'; expected one of int, float, string."),
    ("--columns", ["a:float:log"], "a received 'log'; expected one of none, zscore, minmax."),
    ("--label_regex", ["("], "which is no regular expression (missing )"),
    ("--label_regex", ["cat", "(?P<split>.)"], "expected a group that captures the label"),
    ("--label_regex", ["(.) --layout class_folders"], "with --layout class_folders, which has"),
    ("--class_names", ["a,b,a"], "received 'a' twice; expected each class once."),
    ("--max_reject_fraction", ["1.1", "-0.1", "nan"], "expected 0 to 1."),
    ("--input", ["", " "], "expected a path."),
    ("--output", [""], "expected a path."),
    *((flag, ["odd"], "invalid choice: 'odd' (choose from") for flag in (
        "--layout", "--resize_mode", "--filter", "--subsampling", "--colorspace", "--bbox_frame",
        "--shard_by")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [(flag, value, told) for flag, values, told in REFUSED for value in values],
)
def test_a_wrong_value_is_one_sentence_with_the_flag(flag, value, told):
    value, *more = re.split(" (?=--)", value)
    with pytest.raises(UserError) as error:
        cli.parse([*BASE, f"{flag}={value}", *" ".join(more).split()])
    text = str(error.value)
    assert text.removeprefix("Argument ").startswith(flag) and told in text and "\n" not in text


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--output", "o"], "arguments are required: --input;"),
        (["--input", "i"], "arguments are required: --output;"),
        ([*BASE, "--image_size"], "--image_size: expected one argument;"),
        ([*BASE, "--plan_only=yes"], "--plan_only: ignored explicit argument 'yes';"),
    ],
)
def test_a_malformed_command_is_one_sentence(argv, told):
    with pytest.raises(UserError, match=told):
        cli.parse(argv)


def test_help_has_units_defaults_and_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.parse(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("default: 256", "10^6 bytes", "in MiB (default: 64)", "example:", "--runner"):
        assert words in text


VALUES = [
    (texts.parse_size, "256", (256, 256)),
    (texts.parse_size, "32x48", (32, 48)),
    (texts.parse_size, " 7 ", (7, 7)),
    (parse_color, "#102030", (16, 32, 48)),
    (parse_color, "00FF7f", (0, 255, 127)),
    (texts.parse_num_shards, "8", {"*": 8}),
    (texts.parse_num_shards, " train = 64 , validation=8", {"train": 64, "validation": 8}),
    (texts.parse_columns, "", ()),
    (texts.parse_columns, "age:float:zscore,tokens:int[]",
     (ColumnSpec("age", "float", (), "zscore"), ColumnSpec("tokens", "int", None))),
    (texts.parse_columns, "v:float[3]:minmax", (ColumnSpec("v", "float", (3,), "minmax"),)),
    (texts.parse_columns, "a/bbox/xmin:float[]", (ColumnSpec("a/bbox/xmin", "float", None),)),
    (texts.parse_columns, "a caption:string", (ColumnSpec("a caption", "string"),)),
    (texts.parse_extensions, "jpg,.PNG", (".jpg", ".png")),
    (texts.parse_extensions, "*.tif, webp", (".tif", ".webp")),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "text", "expected"), VALUES, ids=[text for _, text, _ in VALUES])
def test_a_text_is_a_value(parse, text, expected):
    assert parse(text) == expected


def test_paths_become_absolute_but_uris_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse_path("--input", "a/../b") == os.path.join(tmp_path, "b")
    assert parse_path("--input", "~/b") == "/home/somebody/b"
    assert parse_path("--input", "gs://bucket/a") == "gs://bucket/a"
    assert parse_path("--input", "file:///data/a%20b") == "/data/a b"


@pytest.mark.parametrize("text", ["5", "[1, 2]", '["ab", "cd"]', "{}", '{"a": 1}', '{"a": {}}'])
def test_a_class_map_of_json_is_an_object_of_names(tmp_path, text):
    path = tmp_path / "classes.json"
    path.write_text('{"a": "b", "c": "b"}')
    assert texts.parse_class_map(str(path)) == {"a": "b", "c": "b"}
    path.write_text(text)
    with pytest.raises(UserError, match=r"--class_map .*classes\.json.*expected"):
        texts.parse_class_map(str(path))


@pytest.mark.parametrize(
    "parse",
    [
        texts.parse_size, parse_color, texts.parse_num_shards, texts.parse_extensions,
        texts.parse_columns, lambda t: texts.parse_pairs("--splits", float, t),
    ],
)  # fmt: skip
@hypothesis.given(text=strategies.text(max_size=12))
def test_any_other_text_is_a_value_or_a_sentence(parse, text):
    try:
        parse(text)
    except UserError as e:
        assert str(e).startswith("--")
