import io
import json
import shlex
import subprocess
import sys

import pytest

import imageshards as ims
from imageshards.__main__ import main
from imageshards.progress import ProgressLine
from imageshards.text import LastingStream, lasting_streams
from tests.support.commands import ROOT
from tests.support.dataset_factory import Dataset

PYTHON = shlex.quote(sys.executable)


def shell(line):
    return subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True)


class Broken(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def test_a_stream_drops_text_after_its_first_error():
    stream, strict = LastingStream(Broken()), LastingStream(Broken(), raises=True)
    assert stream.write("some") == 4 and stream.write("more") == 4
    assert isinstance(stream.error, OSError)
    with pytest.raises(OSError, match="No space"):
        strict.write("some")
    assert strict.write("more") == 4


def test_control_characters_of_names_do_not_reach_the_terminal(tmp_path, capsys):
    name = "x\x1b]0;owned\x07\x9b2J"
    made = Dataset(tmp_path / "set", {"train": 1}, per_shard=2, classes=("cat", name))
    (made.directory / "index" / name).touch()
    made.manifest["warnings"] = [name]
    made.manifest["splits"]["train"]["shards"][0]["classes"] = {"cat": 1, name: 7}
    made.save()
    for command in ("verify", "report", "duplicates"):
        main([command, str(made.directory)])
    main(["verify", str(tmp_path / name)])
    with lasting_streams():
        print(name, end="\r")
    said = "".join(capsys.readouterr())
    assert said.count("x\\u001b]0;owned\\u0007\\u009b2J") > 1 and "2J\r" in said
    assert not {"\x1b", "\x07", "\x9b"} & {*said, *repr(ims.verify(made.directory, workers=1))}
    with pytest.raises(ims.UserError, match="owned") as caught:
        ims.open(tmp_path / name)
    assert "\x1b" not in str(caught.value)


def test_a_logger_that_closes_its_stream_leaves_stderr_open(capsys):
    """As absl's does at the end of a process, after the streams of a command were put back."""
    with lasting_streams():
        held = sys.stderr
    held.close()
    print("still open", file=sys.stderr)
    assert capsys.readouterr().err == "still open\n"


def test_a_line_of_progress_outlives_its_stream(monkeypatch):
    for stderr in (None, Broken()):
        monkeypatch.setattr(sys, "stderr", stderr)
        with ProgressLine(lambda: "working") as line:
            line.say("a sentence")


# A job, and a command whose result is what it prints.
CODE = """
import sys
from imageshards.commands.command_line import run
def body():
    for _ in range(10_000):
        print("\\udcff č", 10 * "line")
        print("note", file=sys.stderr)
    return 0
sys.exit(run("x", body, prints_result=RESULT))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("redirected", "job", "result", "said"),
    [
        ("<&- >&- 2>&-", 0, 0, ""),
        ("2>/dev/full", 0, 0, ""),
        (">/dev/full", 0, 2, "standard output cannot be written (No space"),
        ("| true", 0, 141, ""),
    ],
)
def test_a_job_survives_an_output_that_cannot_be_written(redirected, job, result, said):
    for is_result, code in ((False, job), (True, result)):
        program = shlex.quote(CODE.replace("RESULT", str(is_result)))
        end = "; exit ${PIPESTATUS[0]}" if "|" in redirected else ""
        line = f"{PYTHON} -c {program} {redirected}{end}"
        done = shell(f"bash -c {shlex.quote(line)}")
        assert done.returncode == code and "Traceback" not in done.stderr
        assert said in done.stderr


@pytest.mark.process
def test_the_next_file_does_not_get_the_number_of_a_closed_output():
    code = "import os\nfrom imageshards.text import lasting_streams\n"
    code += "with lasting_streams():\n    assert os.open('/dev/zero', os.O_RDONLY) > 2"
    assert shell(f"{PYTHON} -c {shlex.quote(code)} <&- >&- 2>&-").returncode == 0


@pytest.mark.process
def test_printed_json_is_valid_in_any_encoding(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    Dataset(tmp_path / "žluť")
    where = shlex.quote(str(tmp_path / "žluť"))
    done = shell(f"{PYTHON} -m imageshards verify {where} --json")
    assert json.loads(done.stdout)["directory"] == str(tmp_path / "žluť")
