"""One command for both programs: which there are, where they stand, and how they are reached."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from imageshards.__main__ import main
from imageshards.commands import COMMANDS, load_command, parser_of
from tests.support.commands import ROOT
from tests.support.dataset_factory import Dataset

HEAVY = ("apache_beam", "tensorflow", "tensorflow_transform", "keras", "grpc", "PIL")


def test_help_names_every_command_with_its_purpose_in_80_columns(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name] and command.purpose in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_parser_of_its_name_whose_help_fits_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert parser_of(name).prog == f"imageshards {name}" and callable(load_command(name).main)
    assert [line for line in parser_of(name).format_help().splitlines() if len(line) > 80] == []


def test_a_command_gets_its_flags_and_gives_its_exit_code(tmp_path, capsys):
    dataset = Dataset(tmp_path)
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 0
    assert "All is well" in capsys.readouterr().out
    next(dataset.directory.glob("*.tfrecord")).unlink()
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 1
    assert main(["train", "--data", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("imageshards train: --data received")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["trian"], "received 'trian', which is no command; did you mean train? All are in"),
        (["export_"], "did you mean export?"),
        (["xyzzy"], "received 'xyzzy', which is no command; all are in imageshards --help."),
        (["--input", "photos"], "received '--input' where a command is expected, as in"),
        ([], "usage: imageshards COMMAND"),
    ],
)
def test_what_is_no_command_is_one_sentence(argv, sentence, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert sentence in err and (err.count("\n") == 1 or not argv) and not out


INDEX = "index/train-00000-of-00003.parquet"
SHARD = "train-00000-of-00003.tfrecord"


@pytest.mark.parametrize(
    ("argv", "missing", "said"),
    [
        ("verify", "", "The following arguments are required: DIR; see imageshards verify --help."),
        ("verify DIR --sample 1", "", "'--sample', which is no flag"),
        ("verify DIR --workers 0", "", "--workers received 0; expected at least 1"),
        ("duplicates DIR --workers 0", "", "--workers received 0; expected at least 1"),
        ("duplicates DIR --distance 11", "", "--distance received 11; expected 0 to 10"),
        ("duplicates DIR --output /proc/none", "", "--output '/proc/none' cannot be written"),
        ("duplicates DIR", INDEX, f"whose {INDEX} is missing"),
        ("duplicates DIR", SHARD, f"whose {SHARD} cannot be read (No such file"),
        ("report DIR", "", "could not be written"),
        *((f"{name} DIR", "manifest.json", "where there is no manifest.json")
          for name in ("verify", "report", "duplicates")),
    ],
)  # fmt: skip
def test_what_cannot_be_done_with_a_data_set_is_one_sentence(tmp_path, capsys, argv, missing, said):
    made = Dataset(tmp_path).directory
    (made / "report").write_text("in the way")
    if missing:
        (made / missing).unlink()
    assert main(argv.replace("DIR", str(made)).split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"imageshards {argv.split()[0]}: ") and said in err
    assert err.count("\n") == 1 and not out
    assert not [*made.glob("duplicates/*")]


@pytest.mark.process
@pytest.mark.parametrize(
    ("heavy", "code"),
    [
        (("beam_pipeline", "trainer", "numpy", "tqdm"),
         "from imageshards.__main__ import main\nmain(['--help'])\nmain(['--version'])"),
        (HEAVY, "from imageshards.commands import COMMANDS, parser_of\n"
         "for name in COMMANDS:\n    parser_of(name).format_help()"),
    ],
    ids=["list and version", "parsers"],
)  # fmt: skip
def test_help_loads_nothing_heavy(heavy, code):
    code += f"\nimport sys\nprint(sorted({set(heavy)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "command"),
    [("trainer", "train --data d"), ("beam_pipeline", "build --input i --output o"),
     ("trainer", "")],
)  # fmt: skip
def test_a_package_of_the_users_that_hides_a_program_is_named_with_ours(tmp_path, program, command):
    """As for who installs the packages: the finder of an editable install comes before folders."""
    (tmp_path / program).mkdir()
    (tmp_path / program / "__init__.py").touch()
    code = "import imageshards as ims; ims.open('shards')"
    argv = ["-m", "imageshards", *command.split()] if command else ["-c", code]
    done = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said = f"Python finds another package {program!r}, {tmp_path / program}, before the one that "
    said += f"belongs to imageshards, {ROOT / program}; rename yours"
    assert said in done.stderr.splitlines()[-1]
    assert not command or (done.returncode, done.stderr.count("\n")) == (2, 1)
