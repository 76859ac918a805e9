"""The command line: every flag changes what is built, and what is wrong is said in a sentence."""

import dataclasses
import re
import unicodedata
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from beam_pipeline import cli
from beam_pipeline import option_texts as texts
from beam_pipeline.options import (
    BuildOptions,
    ColumnSpec,
    ImageOptions,
    InputOptions,
    PlanOptions,
    UrlOptions,
)
from imageshards.commands.options import options_of
from imageshards.errors import UserError, naming_flags
from imageshards.images.options import parse_color
from tests.support.errors import refused

BASE = ["--input", "/in", "--output", "/out"]


@pytest.fixture(autouse=True, scope="module")
def naming_flags_as_a_command():
    with naming_flags():
        yield


COLUMNS = (ColumnSpec("a/x y", "string", None), ColumnSpec("v", "float", (3,), "minmax"))
GLOBS = ("*_s", "a,b/**", "old")
# Flag and value → where the options change, and to what: flags whose text is no plain value.
CHANGES = {
    ("--output", "gs://b/t/"): ("output", "gs://b/t"),
    ("--columns", "a/x y:string[],v:float[3]:minmax"): ("source.columns", COLUMNS),
    ("--class_map", "a\\, x=b,c=b", "--class_map", "c=b,d=b"): (
        "class_map",
        {"a, x": "b", "c": "b", "d": "b"},
    ),
    ("--exclude", "/a.txt", "--exclude", "file:///b.txt"): ("exclude", ("/a.txt", "/b.txt")),
    ("--drop_column", "a,b", "--drop_column", "c\\, d"): (
        "source.drop_column",
        ("a", "b", "c, d"),
    ),
    ("--drop_class", "a,b", "--drop_class", "c\\, d"): ("drop_class", ("a", "b", "c, d")),
    ("--extensions", "*.tif, .PNG,webp"): ("source.extensions", (".tif", ".png", ".webp")),
    ("--exclude_glob", "*_s,a\\,b/**", "--exclude_glob", "old"): ("source.exclude_glob", GLOBS),
    ("--background", "#00FF7f"): ("image.background", (0, 255, 127)),
    ("--max_image_mpx", "0.5"): ("image.max_pixels", 500_000),
    ("--max_image_mb", "2"): ("image.max_bytes", 2 * 2**20),
    ("--splits", "a=0.7,b_2=0.1,c=0.2"): ("plan.splits", {"a": 0.7, "b_2": 0.1, "c": 0.2}),
    ("--num_shards", " train = 64 , val=8"): ("plan.num_shards", {"train": 64, "val": 8}),
    ("--class_names", "b\\, x,a"): ("plan.class_names", ("b, x", "a")),
    ("--image_path", "a/{id}.jpg"): ("source.image_path", "a/{id}.jpg"),
    ("--sample", "0.25"): ("sample", 0.25),
    ("--limit", "500"): ("limit", 500),
    ("--zip_encoding", "GBK"): ("source.zip_encoding", "GBK"),
    ("--url_timeouts", "1,2.5,9"): ("urls.url_timeouts", (1.0, 2.5, 9.0)),
}


def plain_changes(defaults):
    """The same of all others: another choice, half a number, the other of two, a text."""
    found: dict[tuple[str, ...], tuple[str, Any]] = {}
    kinds = {"": BuildOptions, "source.": InputOptions, "image.": ImageOptions}
    for prefix, kind in (kinds | {"urls.": UrlOptions, "plan.": PlanOptions}).items():
        for name, (value_type, option) in options_of(kind).items():
            flag, default = f"--{option.flag or name}", defaults[prefix + name]
            if flag in {"--input", *(flags[0] for flags in CHANGES)}:
                continue
            if value_type is bool:
                found[flag,] = prefix + name, not default
                continue
            value = next((choice for choice in option.choices if choice != default), "/(x)")
            if value_type is not str and not option.choices:
                value = value_type(default / 2)
            found[flag, str(value)] = prefix + name, value
    return found


def flat(options: BuildOptions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(options).items():
        if dataclasses.is_dataclass(value):
            found |= {f"{name}.{inner}": of_inner for inner, of_inner in vars(value).items()}
        elif name not in ("given", "more_sources"):
            found[name] = value
    return found


def test_a_flag_changes_its_option_and_no_other():
    before = flat(cli.parse(BASE)[0])
    changes = CHANGES | plain_changes(before)
    for flags, change in changes.items():
        base = BASE[:2] if flags[0] == "--output" else BASE
        after = flat(cli.parse([*base, *flags])[0])
        wanted = dict([change])
        if flags[0] == "--label_separator":
            wanted["source.label"] = "several"  # what else would it separate?
        assert {name: v for name, v in after.items() if v != before[name]} == wanted, flags
    actions = cli.make_parser()._actions
    known = {string for action in actions for string in action.option_strings}
    others = {"-h", "--help", "--version", "--image_size", "--input"}
    assert known - others == {flags[0] for flags in changes}
    assert all(action.help for action in actions)


def test_flags_of_beam_are_left_for_beam():
    options, rest = cli.parse(["--runner", "FlinkRunner", *BASE, "--qual=7", "--quality=9"])
    assert options.image.quality == 9
    assert rest == ["--runner", "FlinkRunner", "--qual=7"]  # the beginning of a flag is not it


# What is refused before an input is looked at; a value may have another flag behind it.
REFUSED = {
    "class_map": ["a", "a=b,a=c", "a=b,b=a", "a=a", "no/such.txt", "a=b --class_map=a=c"],
    "drop_column": ["", ","],
    "drop_class": ["", "a --class_map=a=b", "b --class_map=a=b", "a --label=none"],
    "image_size": ["", "12x", "-5", "٣", "9" * 5000, "0x6", "16385", "8x9 --resize_mode shortest"],
    "background": ["fff", "##ffffff", "gggggg"],
    "zip_encoding": ["", "hex", "cp0"],
    "max_image_mpx": ["", "nan", "1e-9", "many"],
    "url_timeouts": ["1,2", "1,0,2"],
    "splits": ["", "a", "0.5", "a=b", "train=2", "a=1.5,b=-0.5", "a=nan", "a=0.5,b=0.4", "é=1"],
    "num_shards": ["", "²", "-3", "9" * 11, "train=", "a=1,a=2", "0", "train=0", "100000"],
    "extensions": ["", "jpg,,png", "."],
    "image_path": ["x.jpg", "{id", "{id}.jpg --image_column id"],
    "sample": ["0", "1", "nan"],
    "limit": ["0", "-1"],
    "exclude_glob": ["", "a,/"],
    "columns": ["a", ":int", "a:int[-1]", "a:int[0]", "a:int:zscore", "a:text"],
    "label_regex": ["(", "cat", "(?P<split>.)", "(.) --layout class_folders"],
    "class_names": ["a,b,a"],
    "output": ["/caf\udce9/out"],
}


@pytest.mark.parametrize("flag", REFUSED)
def test_a_wrong_value_is_one_sentence_with_the_flag(flag):
    for given in REFUSED[flag]:
        value, *more = re.split(" (?=--)", given)
        base = BASE[:2] if flag == "output" else BASE
        with refused(flag, f"--{flag} "):
            cli.parse([*base, f"--{flag}={value}", *" ".join(more).split()])


@pytest.mark.parametrize("more", ["--splits=train=1", "--label=none"])
def test_splits_that_cannot_be_stratified_are_refused(more):
    with refused("stratify", more.partition("=")[0]):
        cli.parse([*BASE, "--stratify", more])


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b\na=c", ""])
def test_a_file_of_a_class_map_has_a_pair_on_each_line(tmp_path, text):
    path = tmp_path / "classes.txt"
    path.write_text("a=b\n\nc, d = b\n")
    assert texts.parse_class_map(str(path)) == {"a": "b", "c, d": "b"}
    path.write_text(text)
    with refused("class_map", "classes.txt"):
        texts.parse_class_map(str(path))


@pytest.mark.parametrize(
    "parse",
    [
        texts.parse_size, parse_color, texts.parse_num_shards, texts.parse_extensions,
        texts.parse_columns, lambda t: texts.parse_pairs("splits", float, t),
    ],
)  # fmt: skip
@hypothesis.given(text=strategies.text(max_size=12))
def test_any_text_is_parsed_or_refused_with_the_flag(parse, text):
    try:
        parse(text)
    except UserError as e:
        assert str(e).startswith("--")


def test_class_names_of_flags_are_in_one_form_of_unicode():
    nfc, nfd = (unicodedata.normalize(form, "Čmelák") for form in ("NFC", "NFD"))
    options, _ = cli.parse([*BASE, f"--class_names={nfd},a", f"--class_map=b={nfd}"])
    assert options.plan.class_names == (nfc, "a") and options.class_map == {"b": nfc}
    assert PlanOptions(pinned_classes=(nfd, "a", nfc)).pinned_classes == (nfc, "a")
    with refused("class_names"):
        cli.parse([*BASE, f"--class_names={nfd},{nfc}"])
