"""What can be proven of the graph before a cluster sees it.

A job server for Flink is a Java program that takes a portable proto; what its translator
refuses, and what it must hold in memory, is known from its source. So the proto is looked at:
of labels alone, and of a table with extra columns through tensorflow-transform. What a
runner would have to hold at once is weighed while the graph runs in this process.
"""

import collections
import contextlib
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import apache_beam as beam
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability import portable_runner
from apache_beam.runners.portability.fn_api_runner import execution, fn_runner
from apache_beam.transforms import environments

from beam_pipeline import pipeline
from beam_pipeline.inputs import transforms as inputs
from beam_pipeline.inputs.listing import schemas_of
from beam_pipeline.options import BuildOptions, ColumnSpec, InputOptions, PlanOptions
from beam_pipeline.planning import plan
from beam_pipeline.planning import transforms as planning
from tests.support import builds

PAR_DO, GROUP_BY_KEY, RESHUFFLE, IMPULSE, FLATTEN = (
    f"beam:transform:{name}:v1"
    for name in ("pardo", "group_by_key", "reshuffle", "impulse", "flatten")
)
# What Flink's translators take, and what Java's fuser puts into stages for the workers.
NATIVE = {IMPULSE, FLATTEN, GROUP_BY_KEY, RESHUFFLE}
FUSIBLE = {
    PAR_DO,
    "beam:transform:window_into:v1",
    "beam:transform:combine_per_key_precombine:v1",
    "beam:transform:combine_per_key_merge_accumulators:v1",
    "beam:transform:combine_per_key_extract_outputs:v1",
}
REMOTE = ["--environment_type=EXTERNAL", "--environment_config=localhost:1"]


# tensorflow-transform counts what it does and clears caches: nothing that anybody waits for.
SIDE_EFFECTS = re.compile(
    r"Analyse/(Analyse|Transform)/"
    r"(Instrument|WaitAndClear|PrepareToClear|Create\w+TensorRepresentations|MapToTensor"
    r"|MakeCheapBarrier|CreateSavedModel.*/Count/)"
)

SMALL, LARGE = 40, 160
# References of one shard, of a batch of them, and of a sample: small, so that their laws show.
SHARD, BATCH, SAMPLE = 10, 10, 8


def build_of(kind: str, count: int, folder: pathlib.Path) -> beam.Pipeline:
    """A job for a remote runner: of `labels` alone, or of a table with `columns`."""
    images = builds.class_folders(folder / "in", {"cat": count // 2, "dog": count // 2})
    source = InputOptions(str(images))
    if kind == "columns":
        with open(folder / "table.jsonl", "w") as file:
            for path in sorted(images.rglob("*.jpg")):
                row = {"image": str(path.relative_to(folder)), "label": path.parent.name}
                print(json.dumps(row | {"age": 1.5, "tokens": [1, 2]}), file=file)
        columns = (ColumnSpec("age", "float", (), "zscore"), ColumnSpec("tokens", "int", None))
        source = InputOptions(file.name, columns=columns)
    shards = PlanOptions({"train": 0.5, "validation": 0.5}, num_shards={"*": count // (2 * SHARD)})
    staging = folder / "out" / ".staging"
    staging.mkdir(parents=True)
    options = BuildOptions(source, str(staging.parent), plan=shards, report=False)
    built = beam.Pipeline(options=PipelineOptions(REMOTE, save_main_session=False))
    pipeline.construct(built, options, schemas_of(options.sources), str(staging))
    return built


def submitted(built: beam.Pipeline, *flags: str) -> beam_runner_api_pb2.Pipeline:
    """What Beam's client sends to a job service."""
    options = PipelineOptions([*REMOTE, *flags], save_main_session=False)
    return portable_runner.PortableRunner.get_proto_pipeline(built, options)


def embedded(built: beam.Pipeline) -> beam_runner_api_pb2.Pipeline:
    return built.to_runner_api(default_environment=environments.EmbeddedPythonEnvironment.default())


class Graph:
    """Transforms of a proto as a runner sees them: a Reshuffle is one, not its parts."""

    def __init__(self, proto: beam_runner_api_pb2.Pipeline):
        self.proto = proto
        self._all = proto.components.transforms
        self.leaves = {key: self._all[key] for key in self._leaves(proto.root_transform_ids)}
        leaves = self.leaves.items()
        self._producers = {each: key for key, leaf in leaves for each in leaf.outputs.values()}

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

    def main_inputs(self, key: str) -> list[str]:
        """The collections that a leaf works through."""
        leaf, sides = self.leaves[key], ()
        if leaf.spec.urn == PAR_DO:
            sides = beam_runner_api_pb2.ParDoPayload.FromString(leaf.spec.payload).side_inputs
        return [each for tag, each in leaf.inputs.items() if tag not in sides]

    def consumers(self, collection: str) -> list[str]:
        return [key for key in self.leaves if collection in self.main_inputs(key)]

    def behind(self, key: str) -> set[str]:
        """All leaves that a leaf waits for, itself included."""
        found, ahead = set[str](), [key]
        while ahead:
            if (current := ahead.pop()) not in found:
                found.add(current)
                ahead += [self._producers[each] for each in self.leaves[current].inputs.values()]
        return found


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
        if info.urn == "beam:metric:element_count:v1" and "PCOLLECTION" in info.labels:
            key = info.labels["PCOLLECTION"]
            count = VarIntCoder().decode(info.payload)
            found.elements[key] = max(count, found.elements.get(key, 0))
    return found


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


@dataclasses.dataclass(frozen=True)
class Case:
    """A build of a kind: its pipeline, and what a client submits for it."""

    kind: str
    built: beam.Pipeline
    graph: Graph


COLUMNS = pytest.param("columns", marks=pytest.mark.process)  # imports TensorFlow


@pytest.fixture(scope="module", params=["labels", COLUMNS])
def case(request, tmp_path_factory) -> Case:
    built = build_of(request.param, SMALL, tmp_path_factory.mktemp(request.param))
    return Case(request.param, built, Graph(submitted(built)))


@pytest.mark.one_row
def test_flink_knows_every_transform_of_the_graph_before_and_after_fusion(case):
    assert {leaf.spec.urn for leaf in case.graph.leaves.values()} <= NATIVE | FUSIBLE
    fused = Graph(submitted(case.built, "--experiments=pre_optimize=all"))
    assert {leaf.spec.urn for leaf in fused.leaves.values()} <= NATIVE | {
        "beam:runner:executable_stage:v1"
    }


@pytest.mark.one_row
def test_the_graph_asks_for_nothing_special_and_is_bounded_in_one_window_and_environment(case):
    # State, timers, stable input and splittable sources would be among the requirements.
    assert list(case.graph.proto.requirements) == []
    components = case.graph.proto.components
    bounded = beam_runner_api_pb2.IsBounded.BOUNDED
    assert {each.is_bounded for each in components.pcollections.values()} == {bounded}
    windows = {each.window_fn.urn for each in components.windowing_strategies.values()}
    assert windows == {"beam:window_fn:global_windows:v1"}
    (used,) = {leaf.environment_id for leaf in case.graph.leaves.values()} - {""}
    assert components.environments[used].urn == "beam:env:external:v1"


def test_a_graph_without_columns_has_few_exchanges(case):
    """Each shuffle and each side input is an exchange between workers on Flink."""
    leaves = case.graph.leaves.values()
    shuffled = [leaf for leaf in leaves if leaf.spec.urn in (GROUP_BY_KEY, RESHUFFLE)]
    sides = [
        side
        for leaf in case.graph.leaves.values()
        if leaf.spec.urn == PAR_DO
        for side in beam_runner_api_pb2.ParDoPayload.FromString(leaf.spec.payload).side_inputs
    ]
    # tensorflow-transform adds some for each column that it scales.
    assert len(shuffled) + len(sides) <= (40 if case.kind != "columns" else 50)


def test_the_last_step_depends_on_every_branch(case):
    (last,) = (key for key in case.graph.leaves if case.graph.name(key) == "Commit/FinishCommit")
    forgotten = [case.graph.name(key) for key in set(case.graph.leaves) - case.graph.behind(last)]
    assert [name for name in forgotten if not SIDE_EFFECTS.match(name)] == []


@dataclasses.dataclass(frozen=True)
class Growth:
    """Two runs: four times the images, in four times the shards."""

    graph: Graph
    larger: Graph
    small: Sizes
    large: Sizes

    def grows(self, collection: str) -> bool:
        """Whether it has more elements when there are more images."""
        large = self.large.elements.get(collection, 0)
        return large >= 2 * max(1, self.small.elements.get(collection, 0))


@pytest.fixture(scope="module")
def growth(case, tmp_path_factory) -> Growth:
    larger = build_of(case.kind, LARGE, tmp_path_factory.mktemp(f"{case.kind}-more"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BATCH_SIZE", BATCH)
        patch.setattr(planning, "SAMPLE_SIZE", SAMPLE)
        patch.setattr(plan, "MIN_BUCKET_SIZE", 1)
        sizes = sizes_of(case.built), sizes_of(larger)
    return Growth(Graph(embedded(case.built)), Graph(embedded(larger)), *sizes)


@pytest.mark.slow
@pytest.mark.one_row
def test_the_graph_does_not_grow_with_the_images(growth):
    assert len(growth.larger.leaves) == len(growth.graph.leaves)
    before, after = growth.graph.proto.ByteSize(), growth.larger.proto.ByteSize()
    # Paths of temporary folders are of different length, and pickled in a few places.
    assert abs(after - before) < 0.02 * before


@pytest.mark.slow
@pytest.mark.one_row
def test_no_side_input_grows_with_the_images(growth):
    """Those that tell of shards grow with their number, by a few bytes for every one."""
    shards = (LARGE - SMALL) // SHARD
    of_shards = {
        "Commit/FinishCommit": 600,
        "Plan/AssignToShards": 60,
        # Names, which is all that passes through Beam's own grouping of a write.
        "Write/Write/WriteImpl/PreFinalize": 60,
        "Write/Write/WriteImpl/FinalizeWrite": 60,
    }
    assert growth.small.side_inputs.keys() == growth.large.side_inputs.keys()
    for name, size in growth.large.side_inputs.items():
        allowed = 60 + shards * of_shards.get(name.rpartition("/")[0], 0)
        assert size - growth.small.side_inputs[name] <= allowed, name


@pytest.mark.slow
def test_no_grouped_value_is_larger_than_the_references_of_a_shard(growth):
    """Sums hold one number, or one result, for every shard."""
    shards = LARGE // SHARD
    of_shards = {
        "Commit/SumSummaries/CombinePerKey/Group": 600,
        "Plan/SumSizes/CombinePerKey/Group": 60,
        "Write/Write/WriteImpl/GroupByKey": 60,
    }
    of_references = {name for name in growth.large.grouped if re.search("GroupShards|Spread", name)}
    assert of_references
    shard = growth.large.grouped["Plan/GroupShards"]
    for name, size in growth.large.grouped.items():
        if name == "UniqueKeys/GroupHashes":  # half a byte an image
            continue
        # Hashes are random: a bucket may hold more than its share. A task of the commit has paths.
        assert size <= 3 * shard + 400 + shards * of_shards.get(name, 0), name
        if name not in of_shards:
            assert size <= 1.6 * growth.small.grouped[name] + 200, name


@pytest.mark.slow
def test_grouped_values_and_side_inputs_lie_inside_their_window(growth):
    """Flink's streaming translator, which is the one of Flink 2.x, fails on anything else."""
    assert growth.small.timed > 40  # every image is grouped, in batches, several times
    assert growth.small.late == growth.large.late == set()


@pytest.mark.slow
def test_every_step_with_more_outputs_than_inputs_is_followed_by_a_reshuffle(growth):
    """Else all that follows would be fused to it and run on one worker."""
    breaks = (RESHUFFLE, GROUP_BY_KEY)
    fused = []
    for key, leaf in growth.graph.leaves.items():
        inputs = growth.graph.main_inputs(key)
        if leaf.spec.urn in breaks or any(growth.grows(each) for each in inputs):
            continue
        for output in filter(growth.grows, leaf.outputs.values()):
            for consumer in growth.graph.consumers(output):
                if growth.graph.leaves[consumer].spec.urn not in breaks:
                    fused.append(f"{growth.graph.name(key)} → {growth.graph.name(consumer)}")
    # Beam gives names out in one step, too late for the window; what follows only turns that back.
    assert fused == ["Write/Write/WriteImpl/FinalizeWrite → Write/InWindow"]
