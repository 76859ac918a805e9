"""What a Beam worker imports before its first image stays little."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from beam_pipeline.columns import tensorflow_settings
from scripts import worker_imports
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.process

# Beam's own harness has imported these, or they are small.
LEAN = {"beam_pipeline", "imageshards", "PIL", "google_crc32c", "lazy_loader"}


@pytest.mark.slow
def test_without_columns_our_steps_import_ourselves_and_pillow() -> None:
    """A manifest has every step that class folders have, and more."""
    phases, _ = worker_imports.measure("manifest")
    assert [phase["phase"] for phase in phases] == [
        "Beam's worker",
        "the local runner",
        "steps unpickled",
        "until the first image",
    ]
    ours = {name for phase in phases[2:] for name in phase["packages"]}
    assert ours <= LEAN
    assert sum(phase["modules"] for phase in phases[2:]) < 120
    assert "tensorflow" not in phases[0]["packages"]


@pytest.mark.slow
def test_with_columns_a_worker_imports_tensorflow_without_keras_3_or_matplotlib() -> None:
    phases, _ = worker_imports.measure("columns")
    packages = {name for phase in phases for name in phase["packages"]}
    assert "tensorflow" in packages
    assert not packages & {"keras", "matplotlib", "trainer"}


def test_the_settings_of_tensorflow_are_there_once_their_module_is_imported() -> None:
    code = (
        "import beam_pipeline.columns.tensorflow_settings, os; "
        "print(os.environ['TF_USE_LEGACY_KERAS'])"
    )
    environ = {k: v for k, v in os.environ.items() if k not in tensorflow_settings.SETTINGS}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=REPOSITORY, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout == "1\n"


def test_what_the_user_set_is_left_alone() -> None:
    code = (
        "import beam_pipeline.columns.tensorflow_settings, os; "
        "print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"},
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "0\n"
