"""The transforms are importable, and README's pipeline of one's own runs as it stands."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest

import beam_pipeline
from imageshards.tfrecord import read_records
from tests.conftest import REPOSITORY
from tests.support.builds import class_folders

pytestmark = pytest.mark.process


def test_the_face_loads_nothing_until_it_is_asked():
    code = (
        "import sys, beam_pipeline\n"
        "assert 'WriteBalancedTFRecord' in dir(beam_pipeline)\n"
        "assert not {'apache_beam', 'tensorflow', 'PIL'} & set(sys.modules)\n"
        "assert beam_pipeline.WriteBalancedTFRecord.__name__ == 'WriteBalancedTFRecord'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_of_the_face_is_there():
    assert "ListImages" in beam_pipeline.__all__
    for name in beam_pipeline.__all__:
        assert getattr(beam_pipeline, name).__name__ == name


def test_readmes_pipeline_writes_balanced_shards(tmp_path, monkeypatch, capfd):
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    section = readme[readme.index("### In a pipeline of your own") :]
    code = re.search(r"```python\n(.*?)```", section, re.S)
    assert code
    class_folders(tmp_path / "photos", {"cat": 40, "dog": 40})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme.py").write_text(code[1], "utf-8")
    runpy.run_path("readme.py")
    printed = capfd.readouterr().out.split()
    assert sorted(printed) == sorted(
        f"pets/set-{split}-{i:05d}-of-00004.tfrecord"
        for split in ("train", "validation")
        for i in range(4)
    )
    counts = {name: sum(1 for _ in read_records(name)) for name in printed}
    assert sum(counts.values()) == 80
    for split in ("train", "validation"):
        of_split = [count for name, count in counts.items() if split in name]
        assert max(of_split) - min(of_split) <= 1
