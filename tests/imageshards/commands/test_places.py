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


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "names.txt").write_text("old=new\n")
    return tmp_path


def test_a_flag_takes_every_form_of_a_place(home):
    actions = [action for name in COMMANDS for action in parser_of(name)._actions]
    for action in actions:
        if _PLACE.search(str(action.metavar)):
            around = "name={}" if action.metavar == "NAME=PLACE" else "{}"
            take: Any = action.type
            whole = take(around.format(home / "names.txt"))
            assert str(home) in str(whole) or "new" in str(whole), action
            for form in ("~/names.txt", f"file://{home}/names.txt"):
                assert take(around.format(form)) == whole, action


# Parameter of a public function → a call that gives it this place; others than `build`'s options.
CALLS: dict[str, Callable[[Any], Any]] = {
    "build.input": lambda place: ims.build(place, "~/out"),
    "duplicates.data": ims.duplicates,
    "evaluate.model": lambda place: ims.evaluate(place, "DATA"),
    "export.model": lambda place: ims.export(place, "~/out"),
    "load_manifest.directory": ims.load_manifest,
    "open.path": ims.open,
    "predict.model": lambda place: ims.predict(place, []),
    "read_records.path": lambda place: list(ims.read_records(place)),
    "report.directory": ims.report,
    "verify.directory": ims.verify,
    "train.cache_folder": lambda place: _kept_in(ims.open("DATA").train, place),
    "evaluation.cache_folder": lambda place: _kept_in(ims.open("DATA").evaluation, place),
}


def _kept_in(describe, place):
    raise UserError(
        str(describe(batch_size=2, cache="pixels", cache_folder=place).read_options.cache_folder)
    )


@pytest.mark.process
def test_a_public_function_takes_every_form_of_a_place(home, monkeypatch):
    Dataset(home / "set")
    monkeypatch.chdir(home)
    (home / "DATA").symlink_to("set")
    for call in CALLS.values():
        for form in ("~/absent", pathlib.Path("~/absent"), f"file://{home}/absent"):
            with pytest.raises((UserError, FileNotFoundError), match=re.escape(f"{home}/absent")):
                call(form)


def test_a_keyword_of_a_build_takes_every_form_of_a_place(home):
    forms = [str(home / "names.txt"), "~/names.txt", home / "names.txt", f"file://{home}/names.txt"]
    for name in ("output", "exclude", "transform_module", "class_names", "class_map"):
        given = [{"input": "/in", "output": "/out"} | {name: form} for form in forms]
        whole, *others = map(cli.options_of, given)
        assert others == [whole] * 3, name


def test_transforms_take_every_form_of_a_place(home):
    write = bp.WriteBalancedTFRecord("~/out/set-", staging=f"file://{home}/staging")
    assert (write.places.output, write.places.staging) == (f"{home}/out", f"{home}/staging")
    assert bp.InputOptions("~/photos").input == f"{home}/photos"
