import argparse
import subprocess
import sys
from unittest import mock

import pytest

from imageshards.commands import COMMANDS, parser_of
from imageshards.commands.command_line import Parser, names_or_file, nearest_flags, run
from imageshards.errors import UserError
from tests.support.dataset_factory import Dataset

FLAGS = ["--batch_size", "--learning_rate", "--optimizer", "--output", "--scale_learning_rate"]


def test_an_unknown_flag_gets_a_hint():
    assert nearest_flags("--batch-size", FLAGS) == ["--batch_size"]
    assert nearest_flags("--optimiser", FLAGS) == ["--optimizer"]
    assert nearest_flags("--lr", FLAGS) == ["--learning_rate"]
    assert nearest_flags("--rate", FLAGS) == ["--learning_rate", "--scale_learning_rate"]
    assert nearest_flags("--output", FLAGS) == []


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        # argparse itself would take it for --learning_rate
        (["--data", "d", "--learning", "1"], "did you mean --learning_rate? See imageshards try"),
        ([], "The following arguments are required: --data; see imageshards try --help."),
        (["--data", "d", "--zzzz"], "no flag of imageshards try; see imageshards try --help."),
        (["--data", "d", "more"], "Received 'more', which is no flag"),
        (["--data", "d", "--learning_rate", "x"], "--learning_rate: invalid float value: 'x'; see"),
    ],
)
def test_a_mistake_is_one_sentence(argv, sentence):
    parser = Parser(prog="imageshards try")
    parser.add_argument("--learning_rate", type=float)
    parser.add_argument("--data", required=True)
    with pytest.raises(UserError) as error:
        parser.parse_args(argv)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_has_a_flag_whose_last_value_wins(name):
    parser = parser_of(name)
    for action in parser._actions:  # any text will do here
        action.type, action.choices, action.required = str, None, False
    for action in parser._actions:
        if not action.option_strings or action.nargs == 0:
            continue
        flag = action.option_strings[-1]
        argv = [flag, "one", flag, "other"]
        if isinstance(action, argparse._StoreAction):
            with pytest.raises(UserError, match=f"{flag} was given twice"):
                parser.parse_known_args(argv)
            parser.parse_known_args(argv[:2])  # nothing is remembered
        else:
            assert len(vars(parser.parse_known_args(argv)[0])[action.dest]) > 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (r"b, cat\, tabby,New York", ("b", "cat, tabby", "New York")),
        (r"\,,", (",",)),
        ("lines", ("dog, small", "cat", "čmelák")),
    ],
)
def test_names_come_from_a_list_or_the_lines_of_a_file(tmp_path, monkeypatch, text, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines").write_bytes("\ufeffdog, small\r\ncat\r\n\r\nčmelák\r\n".encode())
    assert names_or_file("--classes", text) == names


@pytest.mark.parametrize("text", ["", " , ", "absent.txt", "latin.txt", "empty.txt"])
def test_a_list_without_names_is_one_sentence(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes("čmelák".encode("iso-8859-2"))
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UserError, match=rf"^--classes received '{text}'.*expected"):
        names_or_file("--classes", text)


def test_a_command_whose_extra_is_not_installed_names_it(capsys):
    def without(name):
        return mock.Mock(side_effect=ModuleNotFoundError(f"No module named {name!r}", name=name))

    for missing, extra in (("apache_beam.io", "pipeline"), ("keras", "trainer")):
        assert run("program", without(missing)) == 2
        said = capsys.readouterr().err
        assert f"needs the package {missing.partition('.')[0]}, which is not installed" in said
        assert f"pip install 'imageshards[{extra}]'" in said
    with pytest.raises(ModuleNotFoundError):  # a fault of our own
        run("program", without("trainer.nothing"))


@pytest.mark.process
def test_a_removed_working_directory_is_one_sentence(tmp_path):
    Dataset(tmp_path / "set")
    (tmp_path / "gone").mkdir()
    program = "import os, sys; os.rmdir(os.getcwd()); from imageshards.__main__ import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "verify", str(tmp_path / "set")]
    done = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("imageshards verify: a folder that Python needs is missing (No")
