import contextlib
import os
import pty
import subprocess
import sys
import termios
import threading

import pytest

from imageshards import progress
from imageshards.progress import ProgressLine, rate_line, text_table


@pytest.mark.process
def test_a_line_renews_itself_on_a_terminal_and_leaves_it_clean():
    code = (
        "import threading\n"
        "from imageshards import progress\n"
        "progress._LINE_SECONDS = 0.001\n"
        "lines = ['', '1 of 9 images', '2 of 9 images', 'last', 'last', 'last']\n"
        "ended = threading.Event()\n"
        "def next_line():\n"
        "    return (lines.pop(0) if lines else ended.set()) or ''\n"
        "with progress.ProgressLine(next_line) as line:\n"
        "    line.say('a process was killed')\n"
        "    ended.wait(20)\n"
    )
    parent, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with subprocess.Popen([sys.executable, "-c", code], stderr=terminal) as process:
        os.close(terminal)
        shown = ""
        with contextlib.suppress(OSError):  # what Linux says when the other side is closed
            while piece := os.read(parent, 1 << 16):
                shown += piece.decode()
        assert process.wait() == 0
    os.close(parent)
    for expected in ("\r1 of 9 images", "\r2 of 9 images", "\ra process was killed", "\rlast"):
        assert expected in shown.replace("\n", "\r")
    assert shown.rpartition("\r")[0].rpartition("\r")[2].strip() == ""  # wiped out
    assert "last" not in shown.rpartition("\r")[2]


def test_a_log_gets_plain_lines_and_no_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.01)
    said = threading.Event()
    with open(tmp_path / "log", "w+") as log:
        monkeypatch.setattr(sys, "stderr", log)

        def work():
            yield "a"
            assert said.wait(20)
            yield "b"

        class Noting(ProgressLine):
            def say(self, sentence):
                super().say(sentence)
                said.set()

        monkeypatch.setattr(progress, "ProgressLine", Noting)
        assert list(progress.with_progress(work(), 2, "shards", "verifying")) == ["a", "b"]
        log.seek(0)
        assert "/2 shards" in log.read()


def test_rate_line_shows_the_rate_and_the_time_left():
    assert rate_line(0, 1399, "images", 0.0, 0, "0 rejects") == "0/1,399 images  0 rejects"
    # Only this run's units tell the speed.
    line = rate_line(1200, 100_000, "images", 10.0, 1000)
    assert line == "1,200/100,000 images  20 images/s  ETA 1:22:20"


def test_text_table_aligns_texts_left_and_numbers_right_and_shortens_names():
    assert text_table(["split", "n"], [["train", "1,000"], ["t", "5"]]) == (
        "split      n\n-----  -----\ntrain  1,000\nt          5"
    )
    rows = [["n02100236_German_short-haired_pointer", "1,000", "n02112350_keeshond (3)"]]
    header = ["class", "examples", "most often taken for"]
    assert text_table(header, rows, (0, 2), width=50).splitlines()[2] == (
        "n02100236…d_pointer     1,000  n02112350…shond (3)"
    )


def test_activity_adds_up_units_of_the_same_work():
    progress.note_activity("")
    assert progress.activity_line() == ""
    progress.note_activity("listing", 999, "image")
    progress.note_activity("listing", 1, "image")
    assert progress.activity_line().startswith("listing: 1,000 images  00:0")
    progress.note_activity("planning")
    assert progress.activity_line().startswith("planning  00:0")
    progress.note_activity("listing", 1, "image")
    assert progress.activity_line().startswith("listing: 1 image  ")
