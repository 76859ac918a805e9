"""A quiet start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.commands import ROOT

pytestmark = pytest.mark.process


def test_importing_tensorflow_says_nothing_and_leaves_the_terminal_as_it_was() -> None:
    code = (
        "import sys; from trainer.imports import quiet_import\n"
        "with quiet_import():\n    import tensorflow\n"
        "print('afterwards', file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stderr == "afterwards\n"
