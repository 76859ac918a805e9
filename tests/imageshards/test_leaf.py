"""What a finished data set needs works where neither Beam nor TensorFlow is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.commands import ROOT
from tests.support.dataset_factory import Dataset

pytestmark = pytest.mark.process

# As where these are not installed: importing one raises ImportError.
ALONE = """
import sys
missing = "apache_beam", "tensorflow", "tensorflow_transform", "keras", "beam_pipeline", "trainer"
sys.modules.update(dict.fromkeys(missing))
from imageshards.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["adopt"], "train 18 records, validation 12 records; 2 classes"),
        (["verify", "--workers", "1"], "All is well: 30 records"),
        (["report"], "wrote"),
        (["duplicates", "--workers", "1"], "30 images: 0 exact"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_the_commands_of_a_finished_data_set_need_the_leaf_alone(tmp_path, argv, said):
    made = Dataset(tmp_path / "set").directory
    if argv == ["adopt"]:  # shards alone, as if somebody else had written them
        for path in (*made.iterdir(),):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != ".tfrecord":
                path.unlink()
    done = subprocess.run(
        [sys.executable, "-c", ALONE, argv[0], str(made), *argv[1:]],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
