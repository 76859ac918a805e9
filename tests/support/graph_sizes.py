"""Runs a graph in this process and weighs what a runner would have to hold at once."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import apache_beam as beam
from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import execution, fn_runner

from tests.support.portable_graph import embedded

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
    grouped: dict[str, int] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(int)
    )
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
    get_buffer = execution.BundleContextManager.get_buffer
    partition = execution.GroupingBuffer.partition
    append = execution.GroupingBuffer.append
    commit = execution.FnApiRunnerExecutionContext.commit_side_inputs_to_state
    grouping: dict[int, str] = {}

    def weigh_buffer(self: Any, buffer_id: bytes, transform_id: str) -> Any:
        buffer = get_buffer(self, buffer_id, transform_id)
        if isinstance(buffer, execution.GroupingBuffer):
            grouping[id(buffer)] = names_of(buffer_id)
        return buffer

    def names_of(buffer_id: bytes) -> str:
        key = execution.split_buffer_id(buffer_id)[1]
        return names.get(key, key)

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
        mock.patch.object(execution.BundleContextManager, "get_buffer", weigh_buffer),
        mock.patch.object(execution.GroupingBuffer, "partition", weigh_groups),
        mock.patch.object(execution.GroupingBuffer, "append", look_at_groups),
        mock.patch.object(
            execution.FnApiRunnerExecutionContext, "commit_side_inputs_to_state", weigh_sides
        ),
    ):
        yield
