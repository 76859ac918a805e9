"""`ims.build`: keywords are flags, it may be called again, a notebook shows what it made."""

import os
import pathlib
import re
import subprocess
import sys

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import imageshards as ims
from beam_pipeline import cli
from beam_pipeline.options import ColumnSpec
from tests.support.builds import class_folders
from tests.support.commands import ROOT, TIMEOUT_SEC
from tests.support.errors import refused

BASE = {"input": "/in", "output": "/out"}

# Keywords, and the flags that say the same.
SAME = [
    ({"image_size": 256}, ["--image_size=256"]),
    ({"image_size": (32, 48)}, ["--image_size=32x48"]),
    ({"quality": "80", "shard_mb": 0.5, "num_shards": 8, "max_reject_fraction": 0},
     ["--quality=80", "--shard_mb=0.5", "--num_shards=8", "--max_reject_fraction=0"]),
    ({"class_names": (name for name in "ba")}, ["--class_names=b,a"]),
    ({"splits": {"a": np.float32(0.8), "b": np.float32(0.2)}}, ["--splits=a=0.8,b=0.2"]),
    ({"class_map": {"a": "b"}}, ["--class_map=a=b"]),
    ({"class_map": [{"a": "b"}, "c=d"]}, ["--class_map=a=b", "--class_map=c=d"]),
    ({"drop_class": ["a,b", "c"]}, ["--drop_class=a\\,b", "--drop_class=c"]),
    ({"exclude": ["/x", pathlib.Path("/y")]}, ["--exclude=/x", "--exclude=/y"]),
    ({"columns": [ColumnSpec("a,b", "float", (3,), "zscore"), "c:int[]"]},
     ["--columns=a\\,b:float[3]:zscore,c:int[]"]),
    ({"url_timeouts": (1, 2.5, 9), "max_image_mpx": 0.5},
     ["--url_timeouts=1,2.5,9", "--max_image_mpx=0.5"]),
    ({"no_report": True, "overwrite": True}, ["--no_report", "--overwrite"]),
    ({"no_report": False, "overwrite": False, "salt": None}, []),
    ({"exclude": pathlib.Path("/x/keys.txt")}, ["--exclude=/x/keys.txt"]),
    ({"input": ["/in", pathlib.Path("/b")]}, ["--input=/b"]),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "flags"), SAME)
def test_a_keyword_sets_the_same_option_as_its_flag(keywords, flags):
    found = cli.options_of(BASE | keywords)
    expected, _ = cli.parse(["--input=/in", "--output=/out", *flags])
    assert found == expected and found.given == expected.given


def test_any_text_may_be_in_the_name_of_a_class():
    assert cli.options_of(BASE | {"class_names": ["a,b", " c"]}).plan.class_names == ("a,b", " c")


@pytest.mark.parametrize(
    ("keyword", "value", "word"),
    [
        ("num_shard", 3, "num_shards"),
        ("help", True, "beam_args"),
        ("overwrite", "no", "'no'"),
        ("splits", 0.8, "0.8"),
        ("class_names", [1, 2], "[1, 2]"),
        ("class_map", {"a": 1}, "{'a': 1}"),
        ("input", [], "''"),
        ("output", ["a", "b"], "['a', 'b']"),
        ("beam_args", "--runner=Flink", "'--runner=Flink'"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_keywords(keyword, value, word, tmp_path):
    with refused(keyword, word) as error:
        ims.build(**{"input": tmp_path, "output": tmp_path / "out", keyword: value})
    assert "--" not in str(error.value).replace("'--", "")
    assert error.value.__suppress_context__


# A script without `if __name__ == "__main__":`.
SCRIPT = """
import gc, logging, os, pathlib, signal, threading
import imageshards as ims
from apache_beam.runners.portability.fn_api_runner import worker_handlers

print("begun")
cache_mb = worker_handlers.STATE_CACHE_SIZE_MB
def state():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    names = ["", "apache_beam", "apache_beam.runners.common"]
    handlers += [logging.getLogger(name).level for name in names]
    return handlers, gc.get_threshold(), gc.get_freeze_count(), gc.isenabled(), dict(os.environ)

before = state()
how = {"image_size": 16, "num_shards": {"train": 2}, "beam_args": ["--direct_num_workers=2"]}
try:
    ims.build("photos", "pets", max_reject_fraction=0, **how)
except ims.UserError as e:
    print(e)
first = ims.build("photos", "pets", max_reject_fraction=0.1, **how)
assert first.rejects == {"not_an_image": 1} and first.classes == ("cat", "dog")
assert first.splits == {n: len(ims.open("pets").source(n)) for n in ("train", "validation")}
gc.disable()
made = []
thread = threading.Thread(target=lambda: made.append(ims.build("pets", "copy", **how)))
thread.start(); thread.join()
assert not gc.isenabled(); gc.enable()
assert sum(made[0].splits.values()) == 20 and made[0].output == os.path.abspath("copy")
plan = ims.build("photos", "planned", plan_only=True)
assert "nothing was written" in str(plan) and not plan.splits
threads = pathlib.Path("/proc/self/task").glob("*/children")
assert not [child for thread in threads for child in thread.read_text().split()]
assert worker_handlers.STATE_CACHE_SIZE_MB == cache_mb
assert ims.verify("copy", workers=2).ok
assert state() == before
"""


def photos(folder: pathlib.Path) -> pathlib.Path:
    found = class_folders(folder / "photos", {"cat": 10, "dog": 10})
    (found / "cat" / "bad.jpg").write_bytes(b"none")
    return found


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_a_script_without_a_guard_builds_twice_in_threads_and_leaves_no_traces(tmp_path):
    photos(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=TIMEOUT_SEC,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    begun, mistake = done.stdout.splitlines()
    assert begun == "begun"
    assert mistake.startswith("max_reject_fraction received 0, which allows 0 of 21 images")


NOTEBOOK = """
import imageshards as ims, imageshards.progress
imageshards.progress._LINE_SECONDS = 0.01
ims.build("photos", "pets", image_size=16, max_reject_fraction=0.1, overwrite=True)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.long
def test_a_notebook_shows_progress_and_a_table(tmp_path):
    photos(tmp_path)
    cell = nbformat.v4.new_code_cell(NOTEBOOK)
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=[cell]), timeout=TIMEOUT_SEC,
        resources={"metadata": {"path": str(tmp_path)}},
    )  # fmt: skip
    environ = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / ".ipython")}
    client.execute(env=os.environ | environ)
    shown = "".join(each.text for each in cell.outputs if each.get("name") == "stderr")
    assert re.search("\r(starting|listing|writing|committing|drawing)", shown)
    (made,) = [each.data for each in cell.outputs if each.output_type == "execute_result"]
    assert made["text/plain"].startswith("split       shards  records")
    assert "21 images listed, 1 rejected (not_an_image 1)" in made["text/plain"]
