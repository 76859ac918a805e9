"""Flags that are filled in when a cluster is asked for, and those that are left alone."""

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners import flags as flags_module
from beam_pipeline.runners.flags import checkout_setup, missing_defaults
from beam_pipeline.runners.runner import check_flags, choose
from tests.conftest import REPOSITORY
from tests.support.errors import refused

pytestmark = pytest.mark.process

FLINK = ["--runner", "FlinkRunner"]


def filled(args):
    given = PipelineOptions(args).get_all_options(drop_default=True, retain_unknown_options=True)
    return dict(argument.removeprefix("--").split("=", 1) for argument in missing_defaults(given))


PORTABLE = ["--runner", "apache_beam.runners.PortableRunner"]
SERVED = [*PORTABLE, "--job_endpoint=localhost:8073"]
TYPE = {"environment_type": "EXTERNAL"}
CONFIG = {"environment_config": "localhost:50000"}
BUNDLES = {"max_bundle_size": "1000", "number_of_execution_retries": "0"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--runner", "SparkRunner"], {}),
        (PORTABLE, {}),  # is refused later
        (SERVED, TYPE | CONFIG),
        ([*SERVED, "--environment_type=EXTERNAL"], CONFIG),
        ([*SERVED, "--environment_config=h:1"], TYPE),
        ([*SERVED, "--environment_type=DOCKER"], {}),
        ([*SERVED, "--environment_type=EXTERNAL",
          "--environment_option=external_service_address=h:1"], {}),
        (FLINK, BUNDLES),
        ([*FLINK, "--flink_master=[local]"], BUNDLES),
        ([*FLINK, "--flink_master=http://flink:8081"], BUNDLES | TYPE | CONFIG),
        ([*FLINK, "--job_endpoint=localhost:2"], BUNDLES | TYPE | CONFIG),
    ],
)  # fmt: skip
def test_a_cluster_gets_workers_of_a_pool_and_flink_its_bundles(flags, expected):
    assert filled(flags) == expected


def test_a_given_flag_is_kept_and_each_default_is_printed_with_its_reason(capsys):
    given = [*FLINK, "--parallelism=3", "--max_bundle_size", "7"]
    build = BuildOptions(InputOptions("in"), "out")
    chosen = choose([*given, "--flink_master", "flink:8081"], build).options
    options = chosen.get_all_options(retain_unknown_options=True)
    assert (options["parallelism"], options["max_bundle_size"]) == (3, "7")
    said = capsys.readouterr().err
    assert "--number_of_execution_retries=0: a failed job ends at once" in said
    assert "--max_bundle" not in said


def test_flags_of_the_java_side_are_known():
    check_flags([*FLINK, "--max_bundle_size=7", "--state_backend", "rocksdb", "--object_reuse"])
    with refused(None, "--max_bundle_sise", "--max_bundle_size"):
        check_flags([*FLINK, "--max_bundle_sise=7"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), {"setup_file": str(REPOSITORY / "setup.py"), "experiments": None}),
        (("--sdk_container_image=i", "--experiments=y"),
         {"experiments": "pip_no_build_isolation"}),  # is added to those that were given
        (("--setup_file=/a/setup.py",), {"setup_file": None}),
        (("--extra_package", "a.whl"), {"setup_file": None}),
        (("--beam_plugins=x",), {"beam_plugins": "beam_pipeline.columns.tensorflow_settings"}),
    ],
)  # fmt: skip
def test_flags_of_dataflow_that_can_be_known_are_filled_in(given, expected):
    found = filled(["--runner=DataflowRunner", *given])
    assert {flag: found.get(flag) for flag in expected} == expected


def test_an_installed_package_is_no_checkout(tmp_path, monkeypatch):
    assert checkout_setup() == str(REPOSITORY / "setup.py")
    monkeypatch.setattr(flags_module, "__file__", str(tmp_path / "beam_pipeline/runners/flags.py"))
    (tmp_path / "setup.py").write_text("setuptools.setup(name='another')\n")
    assert checkout_setup() is None
