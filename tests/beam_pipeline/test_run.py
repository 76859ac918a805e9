"""Before Beam is imported: what is decided, a signal that comes, and the package's face."""

import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_pipeline import run as driver
from beam_pipeline.options import BuildOptions, InputOptions
from tests.support.builds import class_folders, jpeg


@pytest.mark.parametrize(
    ("cores", "source", "output", "flags", "expected"),
    [
        (1, "in", "out", [], 1),
        (1, "gs://a/in", "out", [], 2),  # while one waits for a store the other goes on
        (17, "in", "s3://a/out", [], 20),
        (16, "gs://a/in", "gs://a/out", ["--direct_num_workers", "0"], 18),
        (16, "gs://a/in", "gs://a/out", ["--direct_num_workers", "3"], 3),
        (16, "in", "out", ["--runner", "FlinkRunner"], 0),  # brings its own
    ],
)
def test_number_of_processes(monkeypatch, cores, source, output, flags, expected):
    monkeypatch.setattr(driver, "available_cores", lambda: cores)
    assert driver._pool_size(BuildOptions(InputOptions(source), output), flags) == expected


# A build that is sent a signal while a module of Beam is looked for, by code that swallows all.
STOPPED = """
import importlib.abc, os, signal, sys
from beam_pipeline.__main__ import main

class Swallow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "apache_beam.pipeline":
            try:
                os.kill(os.getpid(), signal.Signals[sys.argv[1]])
            except BaseException:
                pass

sys.meta_path.insert(0, Swallow())
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.process
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.one_row
def test_a_signal_while_beam_is_imported_stops_the_build(number, tmp_path):
    photos = class_folders(tmp_path / "in", {"cat": 2, "dog": 2})
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, number, "--input", photos, "--output", tmp_path / "out"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    # On a slow machine a line says after ten seconds that it is starting.
    (line,) = [one for one in done.stderr.splitlines() if not one.startswith("starting")]
    assert "stopped. Run the same command again" in line
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.process
def test_the_package_imports_beam_only_when_a_name_is_used():
    code = (
        "import sys, beam_pipeline, beam_pipeline.planning.plan\n"
        "names = beam_pipeline.__all__\n"
        "assert 'ListImages' in names and set(names) <= set(dir(beam_pipeline))\n"
        "assert not {'apache_beam', 'tensorflow', 'PIL'} & set(sys.modules)\n"
        "import beam_pipeline.run\n"  # its processes start while Beam is imported
        "assert 'apache_beam' not in sys.modules\n"
        "assert all(getattr(beam_pipeline, name).__name__ == name for name in names)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("changes", "flags", "is_plain"),
    [
        ({}, [], True),
        ({}, ["--runner", "FlinkRunner"], False),
        ({"plan_only": True}, ["--runner", "FlinkRunner"], True),  # planned in this process
        ({"transform_module": "mine.py"}, [], False),
        ({"transform_temp_dir": "gs://a/b"}, [], False),
    ],
)
def test_beam_needs_no_clients_of_stores_for_a_local_build_without_code_of_the_user(
    changes, flags, is_plain
):
    assert driver._is_plain(BuildOptions(InputOptions("in"), "out", **changes), flags) == is_plain


# A program calls `main` and goes on, the command is the whole process, and one uses a store, too.
HOW_MUCH = """
import importlib, sys
from beam_pipeline.__main__ import main
how = sys.argv.pop(1)
if how == "store":
    importlib.import_module("google.auth")
code = main(sys.argv[1:] if how == "call" else None)
print(code, *sorted(sys.modules.keys() & {"boto3", "google.auth", "pandas"}))
"""


@pytest.mark.process
@pytest.mark.long
def test_only_the_command_hides_packages_from_beam(tmp_path):
    photos = class_folders(tmp_path / "in", {"cat": 2, "dog": 2})
    for how in ("command", "call", "store"):
        done = subprocess.run(
            [sys.executable, "-c", HOW_MUCH, how, "--input", photos, "--output", tmp_path / how],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        code, *found = done.stdout.splitlines()[-1].split()
        assert code == "0"
        said = [line for line in done.stderr.splitlines() if " images" not in line]
        assert not [line for line in said if not line.startswith("starting")]
        assert ("pandas" in found, bool(found)) == (how != "command",) * 2
    shards, again = (sorted((tmp_path / how).rglob("*.tfrecord")) for how in ("command", "call"))
    assert [path.read_bytes() for path in shards] == [path.read_bytes() for path in again] != []


@pytest.mark.process
def test_the_command_reads_a_table_with_times_in_nanoseconds(tmp_path):
    """PyArrow needs pandas for these times, because Python has no type for them."""
    kind = pa.struct([("bytes", pa.binary()), ("taken", pa.timestamp("ns"))])
    pictures = pa.array([{"bytes": jpeg(i), "taken": 1001 + i} for i in range(4)], kind)
    parquet.write_table(pa.table({"image": pictures, "label": [*"abab"]}), tmp_path / "in.parquet")
    flags = ["--input", tmp_path / "in.parquet", "--output", tmp_path / "out", "--splits=train=1"]
    subprocess.run([sys.executable, "-m", "imageshards", "build", *flags], check=True)
