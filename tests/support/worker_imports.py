"""Does what a Beam worker does up to its first image, and prints what it imports on the way.

    python tests/support/worker_imports.py GRAPH

It imports Beam's harness, unpickles every step of the graph, and runs it until a picture is opened.
Prints `{phase: {package: modules}}` as JSON.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
from typing import Any


class Recorder:
    """New modules of each phase, counted by their package; none of the standard library."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, int]] = {}
        self._seen = set(sys.modules)

    def end(self, phase: str) -> None:
        """Ends a phase."""
        names = (name.partition(".")[0] for name in set(sys.modules) - self._seen)
        count = collections.Counter(
            name for name in names if name not in sys.stdlib_module_names and name[0] != "_"
        )
        self.phases[phase] = dict(count)
        self._seen |= set(sys.modules)


class InThisProcess:
    """In the place of the processes that decode pictures."""

    @staticmethod
    def submit(_: str, task: Any, *args: Any, size: int = 0) -> None:
        """Does the task."""
        from beam_pipeline.images.pool_worker import Watch

        task(*args, Watch())


def main(graph_file: pathlib.Path) -> None:
    """Prints the phases, and ends at the first picture."""
    recorder = Recorder()
    import apache_beam.runners.worker.sdk_worker_main  # noqa: F401

    recorder.end("Beam's worker")
    from apache_beam.internal import pickler
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner

    recorder.end("the local runner")  # takes the place of the service; no worker has it
    # What `--beam_plugins` names by default.
    from beam_pipeline.columns import tensorflow_settings  # noqa: F401

    graph = beam_runner_api_pb2.Pipeline.FromString(graph_file.read_bytes())
    for transform in graph.components.transforms.values():
        if transform.spec.urn == "beam:transform:pardo:v1":
            payload = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)
            if payload.do_fn.payload:
                pickler.loads(payload.do_fn.payload)
    recorder.end("steps unpickled")
    from beam_pipeline.images import process_pool
    from beam_pipeline.shards import transforms
    from imageshards.images import encode

    def stop(*args: Any, **kwargs: Any) -> None:
        recorder.end("until the first image")
        print(json.dumps(recorder.phases), flush=True)
        os._exit(0)

    vars(encode)["open_source"] = stop
    # Pictures are decoded by processes that import no more than this one has by then.
    for module in (process_pool, transforms):
        vars(module)["own_pool"] = lambda: InThisProcess
    fn_runner.FnApiRunner().run_via_runner_api(graph, PipelineOptions([]))
    raise SystemExit("no picture was opened")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
