"""Lists and measures what a Beam worker imports before its first image.

    python scripts/worker_imports.py

For each kind of build a graph is made as for a remote runner; then a fresh Python does what a
worker does: imports Beam's harness, unpickles every step, runs until the first picture is
opened.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

KINDS = ("labels", "manifest", "columns")
_TIMED = re.compile(r"import time:\s*(\d+) \|\s*\d+ \|\s*([A-Za-z0-9_]+)")


class Recorder:
    """What was imported, and what it cost, phase by phase."""

    def __init__(self) -> None:
        self.phases: list[dict[str, Any]] = []
        self._seen = set(sys.modules)
        self._begun = time.process_time()

    def end(self, name: str) -> None:
        """Ends a phase."""
        now = time.process_time()
        added = set(sys.modules) - self._seen
        count = collections.Counter(module.partition(".")[0] for module in added)
        self.phases.append(
            {
                "phase": name,
                "cpu_sec": round(now - self._begun, 2),
                "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "modules": len(added),
                "packages": {k: v for k, v in count.most_common() if _is_installed(k)},
            }
        )
        self._seen |= added
        self._begun = time.process_time()


def _is_installed(package: str) -> bool:
    return package not in sys.stdlib_module_names and not package.startswith("_")


def make_graph(kind: str, folder: pathlib.Path) -> None:
    """Writes `graph.pb`: a build of a few pictures, as a remote runner gets it."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms import environments
    from PIL import Image

    from beam_pipeline import pipeline
    from beam_pipeline.inputs import schema_of
    from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions

    for number in range(4):
        path = folder / "images" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (60 * number, 0, 0)).save(path)
    source = InputOptions(str(folder / "images"))
    if kind != "labels":
        columns = (ColumnSpec("age", "float", (), "zscore"),) if kind == "columns" else None
        rows = [
            {"image": str(path), "label": path.parent.name}
            | ({"age": 1.5} if columns else {})
            for path in sorted((folder / "images").rglob("*.jpg"))
        ]  # fmt: skip
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = InputOptions(str(folder / "rows.jsonl"), columns=columns)
    options = BuildOptions(source, str(folder / "out"), report=False)
    staging = folder / "out" / ".staging"
    staging.mkdir(parents=True)
    built = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    pipeline.construct(built, options, schema_of(options.source), str(staging))
    here = environments.EmbeddedPythonEnvironment.default()
    graph = built.to_runner_api(default_environment=here)
    (folder / "graph.pb").write_bytes(graph.SerializeToString())


def be_a_worker(graph_file: pathlib.Path) -> None:
    """Prints the phases of a worker as JSON, and ends at its first picture."""
    recorder = Recorder()
    import apache_beam.runners.worker.sdk_worker_main  # noqa: F401

    recorder.end("Beam's worker")
    from apache_beam.internal import pickler
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner

    recorder.end("the local runner")  # takes the place of the service; no worker has it
    # What `--beam_plugins` names, which we fill in.
    from beam_pipeline.columns import tensorflow_settings  # noqa: F401

    graph = beam_runner_api_pb2.Pipeline.FromString(graph_file.read_bytes())
    for transform in graph.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if payload.do_fn.payload:
                pickler.loads(payload.do_fn.payload)
    recorder.end("steps unpickled")
    from beam_pipeline.images import encode as images

    def stop(*args: Any, **kwargs: Any) -> None:
        recorder.end("until the first image")
        print(json.dumps(recorder.phases), flush=True)
        os._exit(0)

    vars(images)["open_source"] = stop
    fn_runner.FnApiRunner().run_via_runner_api(graph, PipelineOptions([]))
    raise SystemExit("no picture was opened")


def measure(kind: str) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Phases of a worker for a kind of build, and package → ms of importing it."""
    with tempfile.TemporaryDirectory(prefix="imageshards-") as folder:
        _python("--make-graph", kind, folder)
        done = _python("--worker", os.path.join(folder, "graph.pb"), timed=True)
    return json.loads(done.stdout.splitlines()[-1]), _spent(done.stderr)


def _spent(said: str) -> dict[str, float]:
    spent: dict[str, float] = collections.defaultdict(float)
    for usec, package in _TIMED.findall(said):
        spent[package if _is_installed(package) else "standard library"] += int(usec) / 1000
    return spent


def _python(*arguments: str, timed: bool = False) -> subprocess.CompletedProcess[str]:
    flags = ["-X", "importtime"] if timed else []
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    environ = os.environ | {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *flags, __file__, *arguments],
        capture_output=True, text=True, env=environ, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{arguments} failed:\n{done.stderr[-3000:]}")
    return done


def report() -> None:
    """Prints a table of phases and packages for every kind of build."""
    print(f"{'':34}{'CPU s':>7}{'RSS MB':>8}{'modules':>9}  new packages (modules)")
    for kind in KINDS:
        phases, spent = measure(kind)
        print(f"{kind}:")
        for phase in phases:
            _print_phase(phase)
        slowest = sorted(spent, key=lambda package: -spent[package])[:10]
        print("  ms by package: " + ", ".join(f"{name} {spent[name]:.0f}" for name in slowest))


def _print_phase(phase: dict[str, Any]) -> None:
    packages = list(phase["packages"].items())
    named = ", ".join(f"{name} {count}" for name, count in packages[:8])
    more = f" and {len(packages) - 8} more" if len(packages) > 8 else ""
    print(
        f"  {phase['phase']:32}{phase['cpu_sec']:7.2f}{phase['rss_mb']:8}{phase['modules']:9}  "
        f"{named}{more}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table; its own processes are called with a hidden flag."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--make-graph", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.make_graph:
        make_graph(args.make_graph[0], pathlib.Path(args.make_graph[1]))
    elif args.worker:
        be_a_worker(pathlib.Path(args.worker))
    else:
        report()


if __name__ == "__main__":
    main()
