"""The graph of a build as a job service receives it, and what runs through it.

Everything is read from the portable proto, so a test says what a runner in another language
would see: Flink's translator, or Dataflow's service. `sizes_of` runs a graph in this process and
weighs what a runner would have to hold at once.
"""

import collections
import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import apache_beam as beam
from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability import portable_runner
from apache_beam.runners.portability.fn_api_runner import execution, fn_runner
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
        with open(folder / f"{kind}.jsonl", "w") as file:
            for path in sorted(images.rglob("*.jpg")):
                row = {"image": str(path.relative_to(folder)), "label": path.parent.name}
                print(json.dumps(row | extra), file=file)
        columns = (ColumnSpec("age", "float", (), "zscore"), ColumnSpec("tokens", "int", None))
        source = InputOptions(file.name, columns=columns if extra else None)
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
        return str(self._all[key].unique_name)

    def side_inputs(self, key: str) -> dict[str, str]:
        leaf = self.leaves[key]
        if leaf.spec.urn != PAR_DO:
            return {}
        payload = beam_runner_api_pb2.ParDoPayload.FromString(leaf.spec.payload)
        return {tag: leaf.inputs[tag] for tag in payload.side_inputs}

    def main_inputs(self, key: str) -> list[str]:
        """The collections that a leaf works through."""
        sides = self.side_inputs(key)
        return [each for tag, each in self.leaves[key].inputs.items() if tag not in sides]

    def consumers(self, collection: str) -> list[str]:
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


_ELEMENT_COUNT = "beam:metric:element_count:v1"


@dataclasses.dataclass
class Sizes:
    """What went through one run.

    Attributes:
        side_inputs: "consumer/tag" → bytes of the side input.
        grouped: GroupByKey → bytes of the largest value of a key.
        elements: Collection → its elements.
        timed: Elements of them whose time was looked at.
        late: Side inputs and GroupByKeys that had an element from after the end of its window.
    """

    side_inputs: dict[str, int] = dataclasses.field(default_factory=dict)
    grouped: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    elements: dict[str, int] = dataclasses.field(default_factory=dict)
    timed: int = 0
    late: set[str] = dataclasses.field(default_factory=set)

    def look_at_times(self, name: str, coder: Any, data: bytes) -> None:
        """Notes whether elements are inside their windows."""
        stream = create_InputStream(data)
        while stream.size() > 0:
            element = coder.get_impl().decode_from_stream(stream, True)
            self.timed += 1
            if any(element.timestamp > window.max_timestamp() for window in element.windows):
                self.late.add(name)


def sizes_of(built: beam.Pipeline) -> Sizes:
    """Runs the graph of a build, one worker in this process, and weighs it."""
    proto = embedded(built)
    names = {key: each.unique_name for key, each in proto.components.transforms.items()}
    found = Sizes()
    runner = fn_runner.FnApiRunner()
    with _weighing(found, names):
        result = runner.run_via_runner_api(proto, PipelineOptions([], save_main_session=False))
    for info in result.monitoring_infos():
        if info.urn == _ELEMENT_COUNT and "PCOLLECTION" in info.labels:
            key = info.labels["PCOLLECTION"]
            found.elements[key] = max(_varint(info.payload), found.elements.get(key, 0))
    return found


def _varint(payload: bytes) -> int:
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(payload))


@contextlib.contextmanager
def _weighing(found: Sizes, names: dict[str, str]) -> Iterator[None]:
    bundles, groups = execution.BundleContextManager, execution.GroupingBuffer
    context = execution.FnApiRunnerExecutionContext
    get_buffer, partition, append = bundles.get_buffer, groups.partition, groups.append
    commit = context.commit_side_inputs_to_state
    grouping: dict[int, str] = {}

    def weigh_buffer(self: Any, buffer_id: bytes, transform_id: str) -> Any:
        buffer = get_buffer(self, buffer_id, transform_id)
        if isinstance(buffer, groups):
            key = execution.split_buffer_id(buffer_id)[1]
            grouping[id(buffer)] = names.get(key, key)
        return buffer

    def weigh_groups(self: Any, n: int) -> Any:
        if not self._grouped_output:
            coder = self._pre_grouped_coder.wrapped_value_coder.value_coder().get_impl()
            for values in self._table.values():
                if not self._windowing.is_default():  # inside a Reshuffle
                    values = [each.value for each in values]
                size = sum(len(coder.encode(value)) for value in values)
                name = grouping.get(id(self), "?")
                found.grouped[name] = max(found.grouped[name], size)
        return partition(self, n)

    def look_at_groups(self: Any, elements: bytes) -> None:
        found.look_at_times(grouping.get(id(self), "?"), self._pre_grouped_coder, elements)
        append(self, elements)

    def weigh_sides(self: Any, data_side_input: Any) -> None:
        for (consumer, tag), (buffer_id, _) in data_side_input.items():
            name = f"{names.get(consumer, consumer)}/{tag}"
            buffer = self.pcoll_buffers.get(buffer_id, ())
            found.side_inputs[name] = sum(map(len, buffer))
            collection = execution.split_buffer_id(buffer_id)[1]
            key = self.safe_coders[self.data_channel_coders[collection]]
            for data in buffer:
                found.look_at_times(name, self.pipeline_context.coders[key], data)
        commit(self, data_side_input)

    with (
        mock.patch.object(bundles, "get_buffer", weigh_buffer),
        mock.patch.multiple(groups, partition=weigh_groups, append=look_at_groups),
        mock.patch.object(context, "commit_side_inputs_to_state", weigh_sides),
    ):
        yield
