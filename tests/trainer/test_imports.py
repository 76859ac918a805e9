"""What TensorFlow writes while it is imported stays off the terminal, unless the import fails.

A module that takes TensorFlow's place is noisy for certain, and imported at once.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.commands import ROOT

pytestmark = pytest.mark.process

CODE = (
    "import sys; from trainer.imports import quiet_import\n"
    "with quiet_import():\n    import tensorflow\n"
    "print('afterwards', file=sys.stderr)"
)


def imported(folder: pathlib.Path, source: str, **environment: str) -> str:
    """What appears on stderr where `source` is the module `tensorflow`."""
    (folder / "tensorflow.py").write_text(source)
    search = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-c", CODE]
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": search, **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True).stderr


NOISE = "import os; os.write(2, b'noise '); "


def test_the_terminal_is_quiet_and_gpus_are_not_taken_whole_unless_that_was_asked_for(
    tmp_path: pathlib.Path,
) -> None:
    assert imported(tmp_path, NOISE) == "afterwards\n"
    assert imported(tmp_path, NOISE, TF_CPP_MIN_LOG_LEVEL="0") == "noise afterwards\n"
    growth = "TF_FORCE_GPU_ALLOW_GROWTH"
    failing = NOISE + f"raise ImportError('growth ' + os.environ['{growth}'])"
    said = imported(tmp_path, failing)
    assert said.startswith("noise Traceback") and "ImportError: growth true" in said
    assert "ImportError: growth false" in imported(tmp_path, failing, **{growth: "false"})
