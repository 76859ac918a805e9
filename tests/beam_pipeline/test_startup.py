"""What is done once, so that Beam starts sooner."""

from __future__ import annotations

import collections
import importlib
import inspect
import subprocess
import sys

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import core, userstate
from apache_beam.transforms.userstate import is_stateful_dofn

from beam_pipeline.startup import cache_inspections, without_unused
from tests.support.builds import class_folders


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
    cache_inspections()
    cache_inspections()  # a second build
    return count


def test_a_method_is_inspected_once_for_all_instances_and_its_answer_is_nobody_s(asked):
    for _ in range(3):
        names, defaults = _ScaleFn().get_function_arguments("process")
        assert (names, defaults) == (["element", "factor", "window"], [2, beam.DoFn.WindowParam])
        names.clear()
        defaults.clear()
        assert not is_stateful_dofn(_ScaleFn())
    assert asked[_ScaleFn.process] == 1


def test_a_dofn_is_inspected_once_however_often_its_state_is_asked_for(monkeypatch):
    count: collections.Counter[object] = collections.Counter()

    def counted(dofn):
        count[dofn] += 1
        return set(), {"timer"}

    monkeypatch.setattr(userstate, "get_dofn_specs", counted)
    cache_inspections()
    one, other = _ScaleFn(), _ScaleFn()
    for dofn in (one, other, one):
        assert is_stateful_dofn(dofn)
        userstate.get_dofn_specs(dofn)[1].clear()
    assert count == {one: 1, other: 1}


def test_functions_of_one_step_are_told_from_those_of_another(asked):
    one, two = core.CallableWrapperDoFn(lambda x, y=1: [x]), core.CallableWrapperDoFn(len)
    assert one.get_function_arguments("process") == (["x", "y"], [1])
    assert two.get_function_arguments("process")[0] == ["obj"]


def test_a_pipeline_gives_the_same(asked):
    with beam.Pipeline("FnApiRunner") as pipeline:
        scaled = pipeline | beam.Create([1, 2]) | beam.ParDo(_ScaleFn(), 3)
        assert_that(scaled, equal_to([3, 6]))
    assert asked[_ScaleFn.process] == 1


def test_what_was_left_out_can_be_imported_afterwards(monkeypatch):
    monkeypatch.setattr("beam_pipeline.startup._UNUSED", ("colorsys",))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(ImportError), without_unused():
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").rgb_to_hls(0, 0, 0) == (0, 0, 0)
    with without_unused():  # it is there by now, and stays
        importlib.import_module("colorsys")


@pytest.mark.process
def test_a_build_on_this_machine_imports_no_client_of_a_service(tmp_path):
    class_folders(tmp_path / "in", {"ant": 2, "bee": 2})
    command = ["-m", "beam_pipeline", "--input", tmp_path / "in", "--output", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command, "--image_size", "16", "--no_report"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "apache_beam.io.tfrecordio" in imported
    services = {"google.cloud.storage", "google.cloud.pubsub_v1", "google.cloud.dataflow_v1beta3"}
    others = {"boto3", "pymongo.mongo_client", "apitools.base.py.base_api", "pandas.core"}
    assert not {*services, *others, "google.cloud.bigquery"} & imported
    assert "bson package" not in done.stderr
