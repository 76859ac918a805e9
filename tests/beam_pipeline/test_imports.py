"""What is done once, so that Beam starts sooner."""

from __future__ import annotations

import collections
import inspect

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import core
from apache_beam.transforms.userstate import is_stateful_dofn

from beam_pipeline.imports import cache_method_signatures


class _ScaleFn(beam.DoFn):
    def process(self, element, factor=2, window=beam.DoFn.WindowParam):
        yield element * factor


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[object]:
    """How often each function was inspected, once Beam has been told to remember them."""
    count: collections.Counter[object] = collections.Counter()

    def counted(function):
        count[getattr(function, "__func__", function)] += 1
        spec = inspect.getfullargspec(function)
        names = spec.args[inspect.ismethod(function) :]
        return names, list(spec.defaults or ())

    monkeypatch.setattr(core, "get_function_args_defaults", counted)
    cache_method_signatures()
    cache_method_signatures()  # a second build
    return count


def test_a_method_is_inspected_once_for_all_instances_and_its_answer_is_nobody_s(asked):
    for _ in range(3):
        names, defaults = _ScaleFn().get_function_arguments("process")
        assert (names, defaults) == (["element", "factor", "window"], [2, beam.DoFn.WindowParam])
        names.clear()
        defaults.clear()
        assert not is_stateful_dofn(_ScaleFn())
    assert asked[_ScaleFn.process] == 1


def test_functions_of_one_step_are_told_from_those_of_another(asked):
    one, two = core.CallableWrapperDoFn(lambda x, y=1: [x]), core.CallableWrapperDoFn(len)
    assert one.get_function_arguments("process") == (["x", "y"], [1])
    assert two.get_function_arguments("process")[0] == ["obj"]


def test_a_pipeline_gives_the_same(asked):
    with beam.Pipeline("FnApiRunner") as pipeline:
        scaled = pipeline | beam.Create([1, 2]) | beam.ParDo(_ScaleFn(), 3)
        assert_that(scaled, equal_to([3, 6]))
    assert asked[_ScaleFn.process] == 1
