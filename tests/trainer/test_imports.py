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


def test_an_import_says_nothing_and_leaves_the_terminal_as_it_was(tmp_path: pathlib.Path) -> None:
    assert imported(tmp_path, "import os; os.write(2, b'noise')") == "afterwards\n"


def test_a_failed_import_shows_what_was_written(tmp_path: pathlib.Path) -> None:
    said = imported(
        tmp_path, "import os; os.write(2, b'no such device\\n'); raise ImportError('x')"
    )
    assert said.startswith("no such device\n") and "ImportError: x" in said


@pytest.mark.parametrize("given", [None, "false"])
def test_gpus_are_not_taken_whole_unless_that_was_asked_for(
    tmp_path: pathlib.Path, given: str | None
) -> None:
    name = "TF_FORCE_GPU_ALLOW_GROWTH"
    source = f"import os; raise ImportError('growth ' + os.environ['{name}'])"
    said = imported(tmp_path, source, **({name: given} if given else {}))
    assert f"ImportError: growth {given or 'true'}" in said


def test_a_log_level_of_the_users_own_keeps_the_log(tmp_path: pathlib.Path) -> None:
    noisy = "import os; os.write(2, b'noise ')"
    assert imported(tmp_path, noisy, TF_CPP_MIN_LOG_LEVEL="0") == "noise afterwards\n"
