"""The leaf package below both programs loads neither Beam nor TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.commands import ROOT

pytestmark = pytest.mark.process

IMPORT_ALL = """
import importlib, pkgutil, sys
import imageshards
for found in pkgutil.walk_packages(imageshards.__path__, "imageshards."):
    importlib.import_module(found.name)
print(sorted({"apache_beam", "tensorflow", "keras", "beam_pipeline", "trainer"} & set(sys.modules)))
"""


def test_no_module_of_the_leaf_loads_a_program_beam_or_tensorflow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
