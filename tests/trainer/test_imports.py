"""What TensorFlow writes while it is imported stays off the terminal, unless the import fails, and
Keras is what the commands need, whatever the shell and keras.json say.

Modules that take the places of TensorFlow and Keras are noisy for certain, and imported at once.
"""

import json
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
NOISE = "import os; os.write(2, b'noise '); "


def imported(folder: pathlib.Path, source: str, **environment: str) -> str:
    """What appears on stderr where `source` is the module `tensorflow`."""
    (folder / "tensorflow.py").write_text(source)
    (folder / "keras.py").write_text("import unittest.mock; config = unittest.mock.Mock()")
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{folder}:{ROOT}", **environment}
    command = [sys.executable, "-c", CODE]
    return subprocess.run(command, env=variables, capture_output=True, text=True).stderr


def test_the_terminal_is_quiet_and_gpus_are_not_taken_whole_unless_that_was_asked_for(tmp_path):
    assert imported(tmp_path, NOISE) == "afterwards\n"
    assert imported(tmp_path, NOISE, TF_CPP_MIN_LOG_LEVEL="0") == "noise afterwards\n"
    growth = "TF_FORCE_GPU_ALLOW_GROWTH"
    failing = NOISE + f"raise ImportError('growth ' + os.environ['{growth}'])"
    said = imported(tmp_path, failing)
    assert said.startswith("noise Traceback") and "ImportError: growth true" in said
    assert "ImportError: growth false" in imported(tmp_path, failing, **{growth: "false"})


SETTINGS = """
from trainer.imports import quiet_import
with quiet_import():
    import keras
c = keras.config
print(c.backend(), c.floatx(), c.epsilon(), c.image_data_format(), c.is_nnx_enabled(), end=" ")
print(keras.layers.Conv2D(1, 1).data_format, keras.layers.Dense(1).compute_dtype)
"""
THEIRS = {"epsilon": 0.5, "backend": "jax", "image_data_format": "channels_first"}
THEIRS |= {"nnx_enabled": True}


@pytest.mark.parametrize(
    ("floatx", "printed", "said"),
    [
        ("float16", "tensorflow float32 1e-07 channels_last False channels_last float32\n", ""),
        ("text", "", "UserError: Keras's settings cannot be used (Invalid `floatx`"),
    ],
)
@pytest.mark.one_row
def test_no_command_depends_on_keras_settings_of_the_user(tmp_path, floatx, printed, said):
    (tmp_path / "keras.json").write_text(json.dumps({**THEIRS, "floatx": floatx}))
    env = {**os.environ, "KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "torch"}
    env |= {"KERAS_NNX_ENABLED": "1", "TF_USE_LEGACY_KERAS": "1"}
    command = [sys.executable, "-c", SETTINGS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.stdout == printed and said in done.stderr
