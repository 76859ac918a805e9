"""Every flag and every public function that takes a place knows `~`, `file://` and `Path`."""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

import beam_pipeline as bp
import imageshards as ims
from beam_pipeline import cli
from imageshards.commands import COMMANDS, parser_of
from imageshards.errors import UserError
from tests.support.dataset_factory import Dataset

# By this, the help says which flags take a place.
_PLACE = re.compile(r"\b(DIR|FOLDER|FILE|PATH|PLACE)\b")
# What surrounds the place in the text of a flag.
_AROUND = {"NAME=PLACE": "name={}"}

FLAGS = [
    pytest.param(action, id=f"{name} {action.dest}")
    for name in COMMANDS
    for action in parser_of(name)._actions
    if _PLACE.search(str(action.metavar))
]


@pytest.fixture
def home(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "names.txt").write_text("old=new\n")
    return tmp_path


@pytest.mark.parametrize("action", FLAGS)
def test_a_flag_takes_every_form_of_a_place(home, action):
    around = _AROUND.get(action.metavar, "{}")
    whole = action.type(around.format(home / "names.txt"))
    assert str(home) in str(whole) or "new" in str(whole)
    for form in ("~/names.txt", f"file://{home}/names.txt"):
        assert action.type(around.format(form)) == whole


# Parameter of a public function → a call that gives it this place; others than `build`'s options.
CALLS: dict[str, Callable[[Any], Any]] = {
    "build.input": lambda place: ims.build(place, "/none/out"),
    "duplicates.data": ims.duplicates,
    "evaluate.model": lambda place: ims.evaluate(place, "DATA"),
    "export.model": lambda place: ims.export(place, "/none/out"),
    "load_manifest.directory": ims.load_manifest,
    "open.path": ims.open,
    "predict.model": lambda place: ims.predict(place, []),
    "read_records.path": lambda place: list(ims.read_records(place)),
    "report.directory": ims.report,
    "verify.directory": ims.verify,
    "train.cache_folder": lambda place: _kept_in(ims.open("DATA").train, place),
    "evaluation.cache_folder": lambda place: _kept_in(ims.open("DATA").evaluation, place),
}
# Tested below, and in tests/trainer/test_evaluate.py.
ELSEWHERE = {
    "build.output", "write_records.path", "load_manifest.records_root", "open.records_root",
    "report.records_root", "verify.records_root", "duplicates.output", "duplicates.records_root",
    "evaluate.data", "evaluate.records_root", "evaluate.report", "export.output", "predict.files",
}  # fmt: skip


def _kept_in(describe, place):
    raise UserError(
        str(describe(batch_size=2, cache="pixels", cache_folder=place).read_options.cache_folder)
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_public_function_takes_every_form_of_a_place(home, monkeypatch, name):
    Dataset(home / "set")
    monkeypatch.chdir(home)
    (home / "DATA").symlink_to("set")
    for form in ("~/absent", pathlib.Path("~/absent"), f"file://{home}/absent"):
        with pytest.raises((UserError, FileNotFoundError), match=re.escape(f"{home}/absent")):
            CALLS[name](form)


def test_what_is_written_to_a_place_below_home_is_there(home):
    ims.write_records("~/some.tfrecord", [b"one"])
    assert [record.payload for record in ims.read_records(home / "some.tfrecord")] == [b"one"]


def test_no_public_parameter_that_is_a_path_is_left_out():
    methods = {name: getattr(ims.Data, name) for name in ("index", "source", "train", "evaluation")}
    # What imports Keras is tested in tests/trainer/training/test_fit_arguments.py.
    names = [name for name in ims.__all__ if "trainer.training" not in ims._HOME_OF.get(name, "")]
    functions = {name: getattr(ims, name) for name in [*names, "open"]} | methods
    found = {
        f"{name}.{parameter.name}"
        for name, function in functions.items()
        if callable(function)
        for parameter in inspect.signature(inspect.unwrap(function)).parameters.values()
        if re.search(r"\bPath", str(parameter.annotation))
    }
    assert found == CALLS.keys() | ELSEWHERE


@pytest.mark.parametrize(
    "name", ["output", "exclude", "transform_module", "class_names", "class_map"]
)
def test_a_keyword_of_a_build_takes_every_form_of_a_place(home, name):
    def asked(place):
        return cli.options_of({"input": "/in", "output": "/out"} | {name: place})

    whole = asked(str(home / "names.txt"))
    for form in ("~/names.txt", home / "names.txt", f"file://{home}/names.txt"):
        assert asked(form) == whole


def test_transforms_of_an_own_pipeline_take_every_form_of_a_place(home):
    write = bp.WriteBalancedTFRecord("~/out/set-", staging=f"file://{home}/staging")
    assert (write.places.output, write.places.staging) == (f"{home}/out", f"{home}/staging")
    assert bp.InputOptions("~/photos").input == f"{home}/photos"


def test_a_folder_with_a_comma_in_its_name_is_opened_whole(home):
    Dataset(home / "a,b")
    data = ims.open("~/a,b")
    assert data.index("train").num_rows == data.splits["train"]
