import shutil
import subprocess
import sys

import pytest

from tests.support.commands import ROOT
from tests.support.dataset_factory import Dataset

pytestmark = pytest.mark.process

# As where these are not installed: importing one raises ImportError.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(%r))
old = {*sys.modules}
def loaded():
    return {n.partition(".")[0] for n in {*sys.modules} - old} - {*sys.stdlib_module_names}
"""
HEAVY = ["apache_beam", "tensorflow", "tensorflow_transform", "keras", "grpc"]


def run_without(modules, code, *arguments):
    command = [sys.executable, "-c", WITHOUT % modules + code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_for_a_finished_dataset_import_neither_program(tmp_path):
    made = Dataset(tmp_path / "set").directory
    (tmp_path / "shards").mkdir()  # alone, as if somebody else had written them
    for shard in made.glob("*.tfrecord"):
        shutil.copy(shard, tmp_path / "shards")
    code = """
import imageshards
assert loaded() == {"imageshards"}
from imageshards.__main__ import main
assert main(["--help"]) == main(["--version"]) == 0
assert not loaded() & {"numpy", "tqdm"}
made, shards = sys.argv[1:]
for argv in (["adopt", shards], ["verify", made], ["report", made], ["duplicates", made]):
    assert main(argv) == 0
"""
    said = run_without([*HEAVY, "beam_pipeline", "trainer"], code, made, tmp_path / "shards")
    assert "train 18 records, validation 12 records; 2 classes" in said
    assert "All is well: 30 records" in said and "30 images: 0 exact" in said


def test_parsers_descriptions_and_mistakes_need_neither_beam_nor_tensorflow(tmp_path):
    code = """
from imageshards.commands import COMMANDS, parser_of
for name in COMMANDS:
    parser_of(name).format_help()
assert "PIL" not in loaded()
import imageshards as ims
data = ims.open(sys.argv[1])
assert len([*data.source("train")]) == 18
train, validation = data.train(batch_size=2), data.evaluation(batch_size=2)
assert train.steps_per_epoch == 9 and validation.steps and train.class_weight and repr(train)
for call in (ims.evaluate, ims.predict, ims.export):
    try:
        call("/none/model.keras", "/none/x")
    except ims.UserError as e:
        print(e)
"""
    assert run_without(HEAVY, code, Dataset(tmp_path).directory).count("model received") == 3
