"""Each flag of a command is named on a page."""

import re

import pytest

from tests.conftest import REPOSITORY
from tests.support.commands import run_module

COMMANDS = "build train evaluate predict export verify report duplicates adopt".split()


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_names_each_flag(command):
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    # A table of numbers names its flags without dashes.
    named = re.findall(r"(?:--|`)([a-z][a-z0-9_]*)", "\n".join(page.read_text() for page in pages))
    shown = run_module("imageshards", command, "--help").stdout
    flags = re.findall(r"^ +(?:-\w, )?--([a-z0-9_]+)", shown, re.M)
    assert flags and {*flags} <= {*named, "help", "version"}
