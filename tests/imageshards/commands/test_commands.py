import os
import subprocess
import sys

import pytest

from imageshards.__main__ import main
from imageshards.commands import COMMANDS, parser_of
from tests.support.commands import ROOT
from tests.support.dataset_factory import Dataset

INDEX = "index/train-00000-of-00003.parquet"
SHARD = "train-00000-of-00003.tfrecord"


def test_every_help_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    texts = {name: parser_of(name).format_help() for name in COMMANDS}
    texts["imageshards"] = capsys.readouterr().out
    assert all(f"  {name} " in texts["imageshards"] for name in COMMANDS)
    long = [(name, line) for name in texts for line in texts[name].splitlines() if len(line) > 80]
    assert long == []


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["trian"], "received 'trian', which is no command; did you mean train? All are in"),
        (["xyzzy"], "received 'xyzzy', which is no command; all are in imageshards --help."),
        (["--input", "photos"], "received '--input', which is no command; all are in imageshards"),
        ([], "usage: imageshards COMMAND"),
    ],
)
def test_an_unknown_command_is_one_sentence(argv, sentence, capsys):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert sentence in err and (err.count("\n") == 1 or not argv) and not out


@pytest.mark.parametrize(
    ("argv", "missing", "said"),
    [
        ("verify DIR --workers 0", "", "--workers received 0; expected at least 1"),
        ("duplicates DIR --distance 11", "", "--distance received 11; expected 0 to 10"),
        ("duplicates DIR --output /proc/none", "", "--output received '/proc/none'"),
        ("duplicates DIR", INDEX, f"whose {INDEX} is missing"),
        ("duplicates DIR", SHARD, f"whose {SHARD} cannot be read (No such file"),
        ("report DIR", "", "report', where index.html cannot be written"),
        ("verify DIR", "manifest.json", "where there is no manifest.json"),
    ],
)
def test_impossible_requests_for_a_dataset_are_one_sentence(tmp_path, capsys, argv, missing, said):
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
    ("program", "command"), [("beam_pipeline", "build --input i --output o"), ("trainer", "")]
)
def test_a_user_package_that_hides_a_program_is_named(tmp_path, program, command):
    """As for who installs the packages: the finder of an editable install comes before folders."""
    (tmp_path / program).mkdir()
    (tmp_path / program / "__init__.py").touch()
    code = "import imageshards as ims; ims.open('shards')"
    argv = ["-m", "imageshards", *command.split()] if command else ["-c", code]
    done = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said = f"Python finds another package {program!r}, {tmp_path / program}, before "
    said += f"{ROOT / program} of imageshards; rename yours"
    assert said in done.stderr.splitlines()[-1]
    assert not command or (done.returncode, done.stderr.count("\n")) == (2, 1)
