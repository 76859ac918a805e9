"""What the benchmarks rest on: same work on both sides, honest sums, clear arguments."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from benchmarks import inputs, measure, plain_loop, run
from benchmarks.cases import interleave, ratios
from benchmarks.measure import BenchmarkError, Usage, run_module
from benchmarks.outcome import Figure, Outcome
from benchmarks.run import BENCHMARKS
from imageshards.tfrecord import read_records
from tests.support.builds import build, class_folders

pytestmark = pytest.mark.process


def payloads(folder: pathlib.Path) -> list[bytes]:
    return sorted(
        record.payload for path in folder.glob("*.tfrecord") for record in read_records(str(path))
    )


def usage(seconds: float) -> Usage:
    return Usage(seconds, seconds, seconds, 0, 0, "")


@pytest.mark.long
@pytest.mark.slow
def test_the_loop_makes_the_very_records_of_a_build(tmp_path):
    photos = class_folders(tmp_path / "photos", {"ant": 11, "bee's nest": 6})
    loop, ours = tmp_path / "loop", tmp_path / "ours"
    arguments = ["--input", str(photos), "--output", str(loop), "--num_shards", "3"]
    assert plain_loop.main([*arguments, "--workers", "1"]) == 0
    assert build("--input", photos, "--output", ours, "--splits", "train=1",
                 "--num_shards", "3", "--no_report") == 0  # fmt: skip
    assert payloads(loop) == payloads(ours)
    assert len(payloads(loop)) == 17
    assert len(list(loop.iterdir())) == 3


def test_links_are_spread_over_files_and_folders(tmp_path):
    sources = sorted(class_folders(tmp_path / "in", {"a": 3}).rglob("*.jpg"))
    root = inputs.linked_folders(sources, tmp_path / "links", 20, 4)
    assert [len(os.listdir(folder)) for folder in root.iterdir()] == [5, 5, 5, 5]
    assert sorted(path.stat().st_nlink for path in sources) == [7, 8, 8]
    assert inputs.linked_folders(sources, tmp_path / "links", 20, 4) == root


def test_a_tree_of_processes_is_measured_whole(tmp_path, monkeypatch):
    burn = "import time\nwhile time.process_time() < {}: pass\n"
    (tmp_path / "burns.py").write_text(
        "import os, subprocess, sys\n"
        f"orphan = [sys.executable, '-c', {burn.format(0.3)!r}]\n"
        "middle = 'import subprocess; subprocess.Popen(' + repr(orphan) + ')'\n"
        "subprocess.run([sys.executable, '-c', middle], check=True)\n" + burn.format(0.2)
    )
    monkeypatch.setattr(measure, "REPOSITORY", tmp_path)
    found = run_module("burns", log=tmp_path / "log", memory=True)
    assert found.cpu_seconds >= 0.49
    assert 0.19 <= found.main_cpu_seconds < 0.45
    assert found.seconds >= 0.19
    assert found.peak_rss_bytes >= found.peak_pss_bytes > 1e6


def test_a_command_that_fails_is_an_error_with_what_it_said(tmp_path):
    with pytest.raises(BenchmarkError, match="exited with 2"):
        run_module("benchmarks.plain_loop", "--colour", log=tmp_path / "log")


def test_sides_run_in_turn_and_are_compared_round_by_round():
    order: list[str] = []

    def side(name: str, *seconds: float):
        left = list(seconds)

        def run_once() -> Usage:
            order.append(name)
            return usage(left.pop(0))

        return run_once

    found = interleave({"a": side("a", 2, 4), "b": side("b", 1, 3)}, 2)
    assert order == ["a", "b", "a", "b"]
    assert ratios(found["a"], found["b"]) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("speed", (0.90, 0.95, 0.99), 0.95), True),
        (Figure("speed", (0.90, 0.94, 0.99), 0.95), False),
        (Figure("memory", (1.3, 1.1, 1.1), 1.15, at_least=False), True),
        (Figure("memory", (1.2, 1.1, 1.2), 1.15, at_least=False), False),
    ],
)
def test_the_median_decides(figure, met):
    assert figure.met is met
    assert ("MISSED" in figure.line()) is not met


def test_an_outcome_is_shown_and_kept():
    outcome = Outcome("speed", "5 images", ("seconds",), {"ours": (1234.5,)},
                      (Figure("ratio", (1.0,), 0.95),), ("a note",))  # fmt: skip
    assert outcome.text().splitlines() == [
        "speed: 5 images",
        "        seconds",
        "  ----  -------",
        "  ours    1,234",
        "  ratio: 1 (1 to 1 in 1 rounds), goal >= 0.95: met",
        "  a note",
    ]
    assert json.loads(json.dumps(outcome.to_dict()))["figures"][0]["met"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "speed"], "--only received 'speed'; expected any of build_vs_loop"),
        (["--rounds", "0"], "--rounds received 0; expected at least 1"),
        (["--images", "-5"], "--images received -5; expected at least 1"),
    ],
)
def test_a_wrong_argument_is_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        run.parse(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_one_benchmark_runs_alone_and_leaves_its_results(tmp_path, monkeypatch, capsys):
    outcome = Outcome("listing", "none", ("s",), {"a": (1.0,)}, (Figure("f", (1.0,), 2.0),))
    for name in BENCHMARKS:
        monkeypatch.setitem(BENCHMARKS, name, lambda settings: pytest.fail("not asked for"))
    monkeypatch.setitem(BENCHMARKS, "listing", lambda settings: outcome)
    monkeypatch.setattr(inputs, "_SYNTHETIC", 1)
    arguments = ["--only", "listing", "--work", str(tmp_path), "--data", str(tmp_path / "absent")]
    assert run.main(arguments) == 0
    said = capsys.readouterr().out
    assert "the photos are drawn, not real" in said
    assert "MISSED" in said
    kept = json.loads((tmp_path / "results.json").read_text())
    assert kept["outcomes"][0]["figures"][0]["met"] is False
    assert kept["machine"]["cores"] >= 1
