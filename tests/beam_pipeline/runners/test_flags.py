"""Flags that are filled in when a cluster is asked for, and those that are left alone."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability import portable_runner

from beam_pipeline.runners import flags as runner_flags
from beam_pipeline.runners.choice import check_flags
from imageshards.errors import UserError
from tests.conftest import REPOSITORY
from tests.support.flink_stand_in import overview, serving

pytestmark = pytest.mark.process

FLINK = ["--runner", "FlinkRunner"]


def filled(args, num_shards=None, environ=None):
    found = runner_flags.missing_defaults(args, num_shards, environ or {})
    return {each.flag: each.value for each in found}


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--runner", "DirectRunner"],
        ["--runner=direct", "--direct_num_workers=2"],
        ["--runner", "PortableRunner"],  # refused later, for want of --job_endpoint
        ["--runner", "SparkRunner"],
    ],
)
def test_other_runners_are_left_alone(args, capsys):
    assert runner_flags.fill_defaults(args) == args
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"environment_type": "EXTERNAL", "environment_config": "localhost:50000"}),
        (["--environment_type=EXTERNAL"], {"environment_config": "localhost:50000"}),
        (["--environment_config=h:1"], {"environment_type": "EXTERNAL"}),
        (["--environment_type", "EXTERNAL", "--environment_config", "h:1"], {}),
        (["--environment_type=DOCKER"], {}),
        (["--environment_type=LOOPBACK"], {}),
        (["--environment_type=EXTERNAL", "--environment_option=external_service_address=h:1"], {}),
    ],
)
def test_a_job_service_gets_workers_of_a_pool_unless_told_otherwise(flags, expected):
    given = ["--runner", "apache_beam.runners.PortableRunner", "--job_endpoint=localhost:8073"]
    assert filled([*given, *flags]) == expected


def test_a_flink_cluster_is_asked_what_it_has():
    with serving({"/overview": overview(version="2.1.0", task_managers=3, slots=12)}) as master:
        assert filled([*FLINK, "--flink_master", master]) == {
            "environment_type": "EXTERNAL",
            "environment_config": "localhost:50000",
            "flink_version": "2.1",
            "parallelism": "12",
            "sdk_worker_parallelism": "4",
            "max_bundle_size": "1000",
            "number_of_execution_retries": "0",
        }


@pytest.mark.parametrize(
    ("slots", "free", "shards", "expected", "words"),
    [
        (8, 8, None, "8", "free task slots of 2"),
        (8, 3, None, "3", "free task slots"),
        (8, 8, 32, "8", "free task slots"),
        (8, 8, 31, "8", "31 shards are few"),
        (8, 8, 5, "5", "the shards; 8 task slots are free"),
    ],
)
def test_no_more_tasks_than_slots_or_shards(slots, free, shards, expected, words):
    with serving({"/overview": overview(slots=slots, free=free)}) as master:
        found = runner_flags.missing_defaults([*FLINK, f"--flink_master=http://{master}/"], shards)
    (parallelism,) = (each for each in found if each.flag == "parallelism")
    assert parallelism.value == expected
    assert words in parallelism.reason


def test_what_was_given_stays_and_each_addition_is_shown_with_its_reason(capsys):
    given = [*FLINK, "--parallelism=3", "--max_bundle_size", "7", "--sdk_worker_parallelism=0"]
    with serving({"/overview": overview()}) as master:
        args = runner_flags.fill_defaults([*given, "--flink_master", master])
    assert args[: len(given)] == given
    said = capsys.readouterr().err.splitlines()
    added = args[len(given) + 2 :]
    assert [line.split(": ")[0] for line in said] == added
    assert all(len(line.split(": ")[1]) > 10 for line in said)
    assert not any(arg.startswith(("--parallelism", "--max_bundle", "--sdk_")) for arg in added)


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
        ((), {"GOOGLE_CLOUD_PROJECT": "p-1"}, {"project": "p-1"}),
        ((), {"CLOUDSDK_CORE_PROJECT": "p-2"}, {"project": "p-2"}),
        ((), {"CLOUDSDK_COMPUTE_REGION": "europe-west4"}, {"region": "europe-west4"}),
        (("--project=x",), {"GOOGLE_CLOUD_PROJECT": "p-1"}, {"project": None}),
        (("--temp_location", "gs://b/t"), {}, {"staging_location": "gs://b/t"}),
        (
            ("--temp_location=gs://b/t", "--staging_location=gs://b/s"),
            {},
            {"staging_location": None},
        ),
        ((), {}, {"setup_file": str(REPOSITORY / "setup.py"), "experiments": None}),
        (("--sdk_container_image=i",), {}, {"experiments": "pip_no_build_isolation"}),
        (("--setup_file=/a/setup.py",), {}, {"setup_file": None}),
        (("--extra_package", "a.whl"), {}, {"setup_file": None}),
        ((), {}, {"beam_plugins": "beam_pipeline.columns.tensorflow_settings"}),
    ],
)
def test_flags_of_dataflow_that_can_be_known_are_filled_in(given, environ, expected):
    found = filled([DATAFLOW, *given], environ=environ)
    assert {flag: found.get(flag) for flag in expected} == expected


def test_what_may_be_given_several_times_is_added_to():
    given = [DATAFLOW, "--beam_plugins=x", "--experiments=y", "--sdk_container_image=i"]
    assert {"beam_plugins", "experiments"} <= filled(given).keys()


@pytest.mark.parametrize("setup", [None, "setuptools.setup(name='another')\n"])
def test_an_installed_package_is_no_checkout(tmp_path, setup):
    package = tmp_path / "beam_pipeline"
    package.mkdir()
    if setup is not None:
        (tmp_path / "setup.py").write_text(setup)
    assert runner_flags.checkout_setup(package) is None
