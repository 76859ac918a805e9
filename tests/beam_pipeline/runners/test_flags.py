"""Flags that are filled in when a cluster is asked for, and those that are left alone."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability import portable_runner

from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners.choice import check_flags, choose
from beam_pipeline.runners.flags import checkout_setup, missing_defaults
from imageshards.errors import UserError
from tests.conftest import REPOSITORY
from tests.support.flink_stand_in import overview, serving

pytestmark = pytest.mark.process

BUILD = BuildOptions(InputOptions("in"), "out")
FLINK = ["--runner", "FlinkRunner"]


def filled(args):
    given = PipelineOptions(args).get_all_options(drop_default=True)
    return {each.flag: each.value for each in missing_defaults(given)}


def test_other_runners_are_left_alone():
    # One without --job_endpoint is refused later.
    assert filled(["--runner", "PortableRunner"]) == filled(["--runner", "SparkRunner"]) == {}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"environment_type": "EXTERNAL", "environment_config": "localhost:50000"}),
        (["--environment_type=EXTERNAL"], {"environment_config": "localhost:50000"}),
        (["--environment_config=h:1"], {"environment_type": "EXTERNAL"}),
        (["--environment_type", "EXTERNAL", "--environment_config", "h:1"], {}),
        (["--environment_type=DOCKER"], {}),
        (["--environment_type=EXTERNAL", "--environment_option=external_service_address=h:1"], {}),
    ],
)
def test_a_job_service_gets_workers_of_a_pool_unless_told_otherwise(flags, expected):
    given = ["--runner", "apache_beam.runners.PortableRunner", "--job_endpoint=localhost:8073"]
    assert filled([*given, *flags]) == expected


def test_a_flink_cluster_is_asked_what_it_has():
    with serving(
        {"/overview": overview(version="2.1.0", task_managers=3, slots=12, free=11)}
    ) as master:
        assert filled([*FLINK, f"--flink_master=http://{master}/"]) == {
            "environment_type": "EXTERNAL",
            "environment_config": "localhost:50000",
            "flink_version": "2.1",
            "parallelism": "11",
            "sdk_worker_parallelism": "4",
            "max_bundle_size": "1000",
            "number_of_execution_retries": "0",
        }


def test_what_was_given_stays_and_each_addition_is_shown_with_its_reason(capsys):
    given = [*FLINK, "--parallelism=3", "--max_bundle_size", "7", "--sdk_worker_parallelism=0"]
    with serving({"/overview": overview()}) as master:
        options = choose([*given, "--flink_master", master], BUILD).options.get_all_options()
    assert (options["parallelism"], options["max_bundle_size"]) == (3, 7)
    assert (options["sdk_worker_parallelism"], options["flink_version"]) == ("0", "2.2")
    said = capsys.readouterr().err
    assert f"--flink_version=2.2: what runs at {master}\n" in said
    assert not any(flag in said for flag in ("--parallelism", "--max_bundle", "--sdk_"))


def test_a_cluster_without_a_free_slot_is_one_sentence_unless_the_user_knows_better():
    with serving({"/overview": overview(slots=4, free=0)}) as master:
        given = [*FLINK, "--flink_master", master]
        with pytest.raises(UserError, match=r"no free task slot \(4 task slots in 2.*parallelism"):
            filled(given)
        assert "parallelism" not in filled([*given, "--parallelism=2"])


def test_a_master_that_only_the_job_server_sees_is_no_mistake():
    flags = filled([*FLINK, "--flink_master=nowhere.invalid:1", "--job_endpoint=localhost:2"])
    assert flags["environment_type"] == "EXTERNAL"
    assert "parallelism" not in flags
    with pytest.raises(UserError, match="no Flink answers"):
        filled([*FLINK, "--flink_master=nowhere.invalid:1"])


def test_flags_of_the_java_side_are_known_typed_and_sent_only_when_given():
    given = [*FLINK, "--max_bundle_size=7", "--number_of_execution_retries", "0", "--object_reuse"]
    check_flags(given)
    options = PipelineOptions(given).get_all_options()
    sent = portable_runner.JobServiceHandle.encode_pipeline_options(options)
    assert sent["beam:option:max_bundle_size:v1"] == "7"
    assert sent["beam:option:number_of_execution_retries:v1"] == "0"
    assert sent["beam:option:object_reuse:v1"] is True
    assert "beam:option:faster_copy:v1" not in sent.fields
    with pytest.raises(UserError, match="max_bundle_size"):
        check_flags([*FLINK, "--max_bundle_size=many"])
    with pytest.raises(UserError, match="did you mean --max_bundle_size"):
        check_flags([*FLINK, "--max_bundle_sise=7"])


DATAFLOW = "--runner=DataflowRunner"


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        ((), "GOOGLE_CLOUD_PROJECT", {"project": "x"}),
        ((), "CLOUDSDK_CORE_PROJECT", {"project": "x"}),
        ((), "CLOUDSDK_COMPUTE_REGION", {"region": "x"}),
        (("--project=y",), "GOOGLE_CLOUD_PROJECT", {"project": None}),
        (("--temp_location", "gs://b/t"), "", {"staging_location": "gs://b/t"}),
        (("--temp_location=gs://b/t", "--staging_location=gs://b/s"), "",
         {"staging_location": None}),
        ((), "", {"setup_file": str(REPOSITORY / "setup.py"), "experiments": None}),
        (("--sdk_container_image=i", "--experiments=y"), "",
         {"experiments": "pip_no_build_isolation"}),  # is added to those that were given
        (("--setup_file=/a/setup.py",), "", {"setup_file": None}),
        (("--extra_package", "a.whl"), "", {"setup_file": None}),
        (("--beam_plugins=x",), "", {"beam_plugins": "beam_pipeline.columns.tensorflow_settings"}),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, tuple) else None,
)  # fmt: skip
def test_flags_of_dataflow_that_can_be_known_are_filled_in(given, environ, expected, monkeypatch):
    if environ:
        monkeypatch.setenv(environ, "x")
    found = filled([DATAFLOW, *given])
    assert {flag: found.get(flag) for flag in expected} == expected


def test_an_installed_package_is_no_checkout(tmp_path):
    package = tmp_path / "beam_pipeline"
    assert checkout_setup(package) is None
    (tmp_path / "setup.py").write_text("setuptools.setup(name='another')\n")
    assert checkout_setup(package) is None
