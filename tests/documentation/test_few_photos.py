"""The page on a few hundred photos runs from beginning to end, with random "published" weights."""

import pathlib
import re
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.documentation.page import run_bash
from tests.support.commands import served_environment

pytest.importorskip("tensorflow")

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]

PAGE = REPOSITORY / "docs" / "howto" / "few_photos.md"
WEIGHTS = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_96_no_top.h5"
_BLOCKS = re.compile(r"(-->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_runs_and_prints_what_it_shows(tmp_path: pathlib.Path) -> None:
    from tests.support.published_weights import publish

    publish("MobileNetV2", tmp_path / "keras" / "models" / WEIGHTS, 96)
    environ = {**served_environment(), "KERAS_HOME": str(tmp_path / "keras")}
    work = tmp_path / "work"
    work.mkdir()
    shown, printed = "", ""
    for not_run, language, source in _BLOCKS.findall(PAGE.read_text("utf-8")):
        if language == "text":
            shown += source
        elif language == "python":
            # Fewer pictures, whose counts are not compared.
            (work / "block.py").write_text(source.replace("range(200)", "range(30)"))
            printed += run_bash(f"{sys.executable} block.py", work, environ)
        elif not not_run:
            printed += run_bash(source, work, environ)
    printed = printed.replace(f"{work}/", "")
    # Which epoch is the best is a matter of luck here.
    printed = re.sub(r"best\.keras, (step \d+) \(.*", r"model.keras, \1", printed)
    printed = printed.replace("best.keras, the model after", "model.keras, the model after")
    ours, theirs = _forms(printed), _forms(shown)
    assert len(theirs) > 20 and [line for line in theirs if line not in ours] == []


def _forms(text: str) -> list[str]:
    """Lines without their numbers, which are the machine's, and their columns."""
    lines = (line.split("\r")[-1] for line in text.splitlines())
    numbers = (re.sub(r"\d+(?:[.,]\d+)*", "0", line) for line in lines)
    return [" ".join(line.split()) for line in numbers]
