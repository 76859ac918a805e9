"""One command for both programs: which there are, where they stand, and how they are reached."""

from __future__ import annotations

import subprocess
import sys

import pytest

import imageshards
from imageshards.__main__ import main
from imageshards.commands import COMMANDS, load_command, parser_of
from tests.support.commands import ROOT
from tests.support.dataset_factory import Dataset

HEAVY = ("apache_beam", "tensorflow", "tensorflow_transform", "keras", "grpc", "PIL")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_parser_of_its_name_and_something_to_call(name):
    assert parser_of(name).prog == f"imageshards {name}"
    assert callable(load_command(name).main)


def test_help_names_every_command_with_its_purpose_in_80_columns(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, command in COMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name] and command.purpose in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
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
        (["export_index"], "did you mean export-index?"),
        (["xyzzy"], "received 'xyzzy', which is no command; all are in imageshards --help."),
        (["--halp"], "received '--halp', which is no flag; did you mean --help?"),
        (["--input", "photos"], "received '--input' where a command is expected, as in"),
    ],
)
def test_what_is_no_command_is_one_sentence(argv, sentence, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert sentence in err and err.count("\n") == 1 and not out


def test_without_a_command_all_are_shown(capsys):
    assert main([]) == 2
    assert "usage: imageshards COMMAND" in capsys.readouterr().err


@pytest.mark.process
def test_the_list_and_the_version_load_no_program():
    code = (
        "import sys\nfrom imageshards.__main__ import main\n"
        "for flag in ('--help', '--version'):\n    assert main([flag]) == 0\n"
        "print(sorted({'beam_pipeline', 'trainer', 'numpy', 'tqdm'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == [f"imageshards {imageshards.__version__}", "[]"]


@pytest.mark.process
def test_no_parser_loads_beam_or_tensorflow():
    code = (
        "import sys\nfrom imageshards.commands import COMMANDS, parser_of\n"
        "for name in COMMANDS:\n    parser_of(name).format_help()\n"
        f"print(sorted({set(HEAVY)} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
