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
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def test_the_terminal_is_quiet_unless_the_import_fails_or_a_log_level_is_set(
    tmp_path: pathlib.Path,
) -> None:
    assert imported(tmp_path, NOISE) == "afterwards\n"
    assert imported(tmp_path, NOISE, TF_CPP_MIN_LOG_LEVEL="0") == "noise afterwards\n"
    said = imported(tmp_path, NOISE + "raise ImportError('x')")
    assert said.startswith("noise Traceback") and "ImportError: x" in said


def test_gpus_are_not_taken_whole_unless_that_was_asked_for(tmp_path: pathlib.Path) -> None:
    source = f"import os; raise ImportError('growth ' + os.environ['{GROWTH}'])"
    assert "ImportError: growth true" in imported(tmp_path, source)
    assert "ImportError: growth false" in imported(tmp_path, source, **{GROWTH: "false"})
