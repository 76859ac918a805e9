"""The recipes keep up with the programs they call.

Each script is really run, by a `python` and an `imageshards` that only note their arguments;
these are then given to the real parsers. One recipe is run as it is, on a few pictures.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import subprocess

import pytest

from beam_pipeline import cli as builder_flags
from imageshards.__main__ import main
from imageshards.commands import COMMANDS, parser_of
from imageshards.errors import UserError
from scripts import make_demo_images
from tests.conftest import REPOSITORY
from tests.support.commands import served_environment
from trainer.commands.flags import parse_config

pytestmark = pytest.mark.process

RECIPES = REPOSITORY / "recipes"
SCRIPTS = sorted(RECIPES.glob("*.sh"))
FIELDS = ("Shows", "Command", "Hardware", "Time", "Result")
# What the stand-in for python prints: taken for a number of records where a script asks.
PRINTED = "64"


@pytest.fixture(params=SCRIPTS, ids=lambda path: path.stem)
def script(request) -> pathlib.Path:
    return request.param


def head(script: pathlib.Path) -> str:
    """The comment a recipe begins with."""
    lines = script.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[1 : next(i for i, line in enumerate(lines) if line[:1] != "#")])


def put_program(folder: pathlib.Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def commands(script: pathlib.Path, folder: pathlib.Path, **variables: str) -> list[list[str]]:
    """Every `python …` and `imageshards …` that the recipe runs, without running any."""
    log = folder / "log"
    for name in ("python", "imageshards"):
        note = f'printf "%s\\0" {name} "$@" >> "{log}"; printf "\\n\\0" >> "{log}"; echo {PRINTED}'
        put_program(folder / "bin", name, note)
    environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", **variables}
    # Not in the repository: nothing a recipe writes by itself may land there.
    done = subprocess.run(
        ["sh", str(script)], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = [[]]
    for argument in log.read_text(encoding="utf-8").split("\0"):
        if argument == "\n":
            found.append([])
        else:
            found[-1].append(argument)
    return [command for command in found if any(command)]


def check(command: str, arguments: list[str]) -> None:
    """Has the real parser of `imageshards COMMAND` take the arguments."""
    if command == "build":
        _, left = builder_flags.parse(arguments)
        assert left == []
    elif command == "train":
        parse_config(arguments)
    elif command == "evaluate":
        # The model is what is missing, and nothing before it.
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            main([command, *arguments])
        assert said.getvalue().startswith("imageshards evaluate: --model_path"), said
    else:
        parser_of(command).parse_args(arguments)


def of_command(name: str, found: list[list[str]]) -> list[list[str]]:
    """The arguments of each `imageshards NAME`."""
    return [command[2:] for command in found if command[:2] == ["imageshards", name]]


def test_there_is_a_recipe_for_each_of_the_five_tutorials():
    assert len(SCRIPTS) == 5


def test_a_recipe_says_how_it_was_run(script):
    found = re.findall(r"^# (\w+): +(\S.*)$", head(script), re.MULTILINE)
    assert [name for name, _ in found] == [*FIELDS]
    assert f"sh recipes/{script.name}" in head(script)
    assert not re.search(r"TO FILL|/work|/tmp|/home", script.read_text(encoding="utf-8"))


def test_a_recipe_is_valid_for_sh_and_bash(script):
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_recipe_without_pictures_says_what_it_needs(script):
    environment = {name: value for name, value in os.environ.items() if name != "IMAGES"}
    done = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search(r"IMAGES: names .*folder", done.stderr), done.stderr


def test_the_parsers_accept_the_flags_of_a_recipe(script, tmp_path):
    found = commands(script, tmp_path, IMAGES=str(tmp_path))
    assert of_command("build", found) and of_command("train", found)
    for name in COMMANDS:
        for arguments in of_command(name, found):
            check(name, arguments)


def test_inline_python_in_a_recipe_compiles_and_its_modules_exist(script, tmp_path):
    for program, first, *rest in commands(script, tmp_path, IMAGES=str(tmp_path)):
        if program == "imageshards":
            assert first in COMMANDS
        elif first == "-c":
            compile(rest[0], script.name, "exec")
        else:
            assert first == "-m" and importlib.import_module(rest[0])


@pytest.mark.parametrize("layout", ["folders", "flat"])
def test_environment_variables_make_the_imagenet_recipe_small(layout, tmp_path):
    images = tmp_path / "images"
    (images / "train" if layout == "folders" else images).mkdir(parents=True)
    small = {"TRAIN_SHARDS": "3", "VAL_SHARDS": "2", "SIZE": "32", "BATCH": "4", "REPLICAS": "2"}
    found = commands(
        RECIPES / "imagenet.sh", tmp_path, IMAGES=str(images), STEPS="7", WARMUP_STEPS="1", **small
    )
    options, _ = builder_flags.parse(of_command("build", found)[0])
    assert options.plan.num_shards == {"train": 3, "val": 2}
    assert options.source.layout == ("split_folders" if layout == "folders" else "auto")
    configs = [parse_config(arguments) for arguments in of_command("train", found)]
    assert [config.model for config in configs] == ["MobileNetV2", "ResNet50"]
    for config in configs:
        assert (config.steps, config.read.batch_size, config.replicas) == (7, 4, 2)
        assert config.read.image_size == (32, 32)


def test_an_unknown_flag_in_a_recipe_is_noticed():
    with pytest.raises(UserError, match="--augmented"):
        check("train", ["--data", "x", "--augmented", "light"])
    with pytest.raises(AssertionError):
        check("build", ["--input", "x", "--output", "y", "--num_shard", "3"])
    with pytest.raises(AssertionError):
        check("evaluate", ["--model_path", "x", "--data", "y", "--jsn"])


@pytest.mark.slow
def test_one_file_per_class_from_pictures_to_model(tmp_path):
    make_demo_images.main(["--output", str(tmp_path / "drawn"), "--per_class", "5"])
    given = {"IMAGES": str(tmp_path / "drawn"), "OUTPUT": str(tmp_path / "out")}
    done = subprocess.run(
        ["sh", str(RECIPES / "one_file_per_class.sh")],
        env={**served_environment(), **given, "PASSES": "2", "BATCH": "4"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "shards" / "manifest.json").read_text())
    records = manifest["splits"]["train"]["num_records"]
    last = (tmp_path / "out" / "model" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 2 * records // 4
    for shard in manifest["splits"]["train"]["shards"]:
        assert list(shard["classes"].values()) == [shard["num_records"]]
