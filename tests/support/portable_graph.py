"""The graph of a build as a job service receives it, and what runs through it.

Everything is read from the portable proto, so a test says what a runner in another language
would see: Flink's translator, or Dataflow's service.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability import portable_runner
from apache_beam.transforms import environments

from beam_pipeline import pipeline
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions

IMPULSE = "beam:transform:impulse:v1"
PAR_DO = "beam:transform:pardo:v1"
GROUP_BY_KEY = "beam:transform:group_by_key:v1"
RESHUFFLE = "beam:transform:reshuffle:v1"
FLATTEN = "beam:transform:flatten:v1"
EXECUTABLE_STAGE = "beam:runner:executable_stage:v1"
WINDOW_INTO = "beam:transform:window_into:v1"
COMBINE_PARTS = {
    "beam:transform:combine_per_key_precombine:v1",
    "beam:transform:combine_per_key_merge_accumulators:v1",
    "beam:transform:combine_per_key_extract_outputs:v1",
}

_REMOTE = ["--environment_type=EXTERNAL", "--environment_config=localhost:1"]


def options_of(kind: str, images: pathlib.Path, folder: pathlib.Path, **plan: Any) -> BuildOptions:
    """A build of class folders: by `labels` alone, from a `manifest`, or with `columns`."""
    source = InputOptions(str(images))
    if kind != "labels":
        extra = {"age": 1.5, "tokens": [1, 2]} if kind == "columns" else {}
        rows = [
            {"image": str(path.relative_to(folder)), "label": path.parent.name, **extra}
            for path in sorted(images.rglob("*.jpg"))
        ]
        listed = folder / f"{kind}.jsonl"
        listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
        columns = (ColumnSpec("age", "float", (), "zscore"), ColumnSpec("tokens", "int", None))
        source = InputOptions(str(listed), columns=columns if extra else None)
    options = BuildOptions(source, str(folder / f"out-{kind}"), report=False)
    return dataclasses.replace(options, plan=dataclasses.replace(options.plan, **plan))


def pipeline_of(options: BuildOptions) -> beam.Pipeline:
    """The whole job, as it is built for a remote runner."""
    built = beam.Pipeline(options=PipelineOptions(_REMOTE, save_main_session=False))
    staging = pathlib.Path(options.output, ".staging")
    staging.mkdir(parents=True, exist_ok=True)
    pipeline.construct(built, options, schemas_of(options.sources), str(staging))
    return built


def submitted(built: beam.Pipeline, *flags: str) -> beam_runner_api_pb2.Pipeline:
    """What Beam's client sends to a job service."""
    return portable_runner.PortableRunner.get_proto_pipeline(
        built, PipelineOptions([*_REMOTE, *flags], save_main_session=False)
    )


def embedded(built: beam.Pipeline) -> beam_runner_api_pb2.Pipeline:
    """The same graph for workers inside this process."""
    return built.to_runner_api(default_environment=environments.EmbeddedPythonEnvironment.default())


class Graph:
    """Transforms of a proto as a runner sees them: a Reshuffle is one, not its parts."""

    def __init__(self, proto: beam_runner_api_pb2.Pipeline):
        self.proto = proto
        self._all = proto.components.transforms
        self.leaves = {key: self._all[key] for key in self._leaves(proto.root_transform_ids)}
        self._producers = {
            output: key for key, leaf in self.leaves.items() for output in leaf.outputs.values()
        }

    def _leaves(self, keys: Iterable[str]) -> Iterator[str]:
        for key in keys:
            transform = self._all[key]
            # A runner takes composites it knows whole, and knows by what they are made of else.
            if transform.spec.urn == RESHUFFLE or not transform.subtransforms:
                if transform.spec.urn or transform.outputs:
                    yield key
            else:
                yield from self._leaves(transform.subtransforms)

    def name(self, key: str) -> str:
        """A transform's full label."""
        return str(self._all[key].unique_name)

    def par_do(self, key: str) -> beam_runner_api_pb2.ParDoPayload | None:
        """What a ParDo asks of a runner; None for another transform."""
        transform = self.leaves[key]
        if transform.spec.urn != PAR_DO:
            return None
        return beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload)

    def producer(self, collection: str) -> str:
        """The leaf that makes a collection."""
        return self._producers[collection]

    def side_inputs(self, key: str) -> dict[str, str]:
        """Tag → collection, of the side inputs of a leaf."""
        payload = self.par_do(key)
        tags = payload.side_inputs if payload else ()
        return {tag: self.leaves[key].inputs[tag] for tag in tags}

    def main_inputs(self, key: str) -> list[str]:
        """The collections that a leaf works through."""
        sides = self.side_inputs(key)
        return [each for tag, each in self.leaves[key].inputs.items() if tag not in sides]

    def consumers(self, collection: str) -> list[str]:
        """Leaves that work through a collection."""
        return [key for key in self.leaves if collection in self.main_inputs(key)]

    def behind(self, key: str) -> set[str]:
        """All leaves that a leaf waits for, itself included."""
        found: set[str] = set()
        ahead = [key]
        while ahead:
            current = ahead.pop()
            if current not in found:
                found.add(current)
                ahead += [self._producers[each] for each in self.leaves[current].inputs.values()]
        return found

    def coder(self, collection: str) -> tuple[Any, ...]:
        """A collection's coder with its parts, to be compared."""
        return self._coder(self.proto.components.pcollections[collection].coder_id)

    def _coder(self, key: str) -> tuple[Any, ...]:
        coder = self.proto.components.coders[key]
        parts = tuple(self._coder(part) for part in coder.component_coder_ids)
        return (coder.spec.urn, coder.spec.payload, parts)
