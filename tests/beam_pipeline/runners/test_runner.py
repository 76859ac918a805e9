"""Which runner flags ask for, and a job elsewhere: its name, how it fails and is cancelled."""

import itertools
from unittest import mock

import apache_beam as beam
import grpc
import pytest
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.runners.portability.fn_api_runner import fn_runner

from beam_pipeline import cli
from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners import runner as runner_module
from beam_pipeline.runners.runner import choose, job_name
from imageshards.errors import UserError
from tests.support import builds, portable_servers
from tests.support.cluster import free_addresses

BUILD = BuildOptions(InputOptions("gs://b/in"), "gs://b/out")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--image_sise", "3"], "^'--image_sise' .* did you mean --image_size?"),
        (["--direct_num_worker=3"], "did you mean --direct_num_workers?"),
        (["-xyzzy"], "^'-xyzzy' is no flag .* --help"),
        (["b.jpg", "c.jpg"], "^'b.jpg' is no flag.*quotes"),
        (["--runner"], "--runner: expected one argument"),
        (["--direct_num_workers", "many"], "--direct_num_workers.*'many'"),
        (["--region=a", "--region=b"], "--region was given twice"),
        (["--runner=SparkleRunner"], "Unexpected pipeline runner: SparkleRunner.*FlinkRunner"),
        (["--runner=no_such_module.Runner"], "No module named 'no_such_module'"),
        (["--direct_running_mode=multi_threading"], "multi_threading.; expected in_memory"),
        (["--dry_run=True"], "--dry_run .*; plan_only"),
        (["--runner=flink", "--template_location=x"], "--template_location .*; plan_only"),
    ],
)
def test_a_flag_nobody_can_use_is_refused(argv, sentence, capsys):
    with pytest.raises(UserError, match=sentence) as error:
        choose(argv, BUILD, cli.make_parser().flags).new_pipeline()
    assert "\n" not in str(error.value)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["DirectRunner", "directrunner", "direct", "FnApiRunner"])
def test_the_local_runner_is_named_so_that_none_is_downloaded(name):
    chosen = choose(["--runner", name], BUILD)
    assert chosen.local
    assert type(chosen.new_pipeline().runner) is fn_runner.FnApiRunner
    direct = chosen.options.view_as(DirectOptions)
    assert (direct.direct_running_mode, direct.direct_num_workers) == ("in_memory", 1)
    for remote in ("flink", "apache_beam.runners.DataflowRunner", "PortableRunner"):
        assert not choose(["--runner", remote], BUILD).local


def run(monkeypatch, error, states=(), cancel=None):
    """What comes out of a job that ends with `error`, or whose states are these one by one."""
    result = mock.MagicMock()
    result.wait_until_finish.side_effect = error
    result.cancel.side_effect = cancel
    type(result).state = mock.PropertyMock(side_effect=states)
    monkeypatch.setattr(beam.Pipeline, "run", lambda pipeline: result)
    monkeypatch.setattr(runner_module, "_POLL_SEC", 0.0)
    runner = choose(["--runner", "PortableRunner", "--job_name=mine"], BUILD)
    with pytest.raises((UserError, RuntimeError, KeyboardInterrupt)) as caught:
        runner.run(runner.new_pipeline())
    return caught.value


_TRACEBACK = "bundle failed:\nTraceback (most recent call last):\n  File x\nKeyError: 'q'\n\n"
_OF_A_WORKER = "…\nbeam_pipeline.errors.UserError: --quality is wrong. [while running 'Write']\n"


def test_a_pipeline_keeps_the_views_of_its_options_apart_from_the_runners():
    chosen = choose(["--direct_num_workers", "3"], BUILD)
    ours, copied = chosen.options, chosen.new_pipeline().options
    for options in (ours, copied):
        assert options.view_as(DirectOptions) is options.view_as(DirectOptions)
    copied.view_as(DirectOptions).direct_num_workers = 7
    assert copied.get_all_options()["direct_num_workers"] == 7
    assert ours.view_as(DirectOptions).direct_num_workers == 1


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (_TRACEBACK, UserError, "the job failed (KeyError: 'q')"),
        # Whoever prints it finds the sentence of the worker.
        (_OF_A_WORKER, RuntimeError, _OF_A_WORKER),
    ],
)
def test_a_failed_job_ends_with_one_sentence(error, kind, sentence, monkeypatch):
    raised = run(monkeypatch, RuntimeError(error))
    assert type(raised) is kind and sentence in str(raised)
    assert kind is RuntimeError or "\n" not in str(raised)


@pytest.mark.parametrize("mishap", ["", "it goes on", "its service is gone"])
def test_ctrl_c_cancels_the_job_and_says_where_it_may_still_run(mishap, monkeypatch, capsys):
    if mishap == "it goes on":
        monkeypatch.setattr(runner_module, "CANCEL_TIMEOUT_SEC", 0.0)
    ends = [] if mishap == "it goes on" else ["CANCELLED"]
    states = itertools.chain(itertools.repeat("RUNNING", 3 if ends else 10**9), ends)
    gone = grpc.RpcError("gone") if mishap == "its service is gone" else None
    assert type(run(monkeypatch, KeyboardInterrupt(), states, gone)) is KeyboardInterrupt
    said = capsys.readouterr().err
    assert "cancelling the job" in said
    assert ("the job mine may still run (" in said) == bool(mishap)
    assert mishap or not [*states]  # the end of the job was waited for


@pytest.mark.parametrize(
    ("output", "stem"),
    [
        ("gs://bucket/My Shards/", "my-shards"),
        ("s3://bucket", "bucket"),
        ("/data/ims.2026", "ims-2026"),
        ("/data/写真", "build"),
        ("gs://b/" + "long" * 40, "long" * 7 + "lo"),
    ],
)
def test_a_job_is_named_after_its_output(output, stem, tmp_path, monkeypatch):
    name = job_name(output)
    assert name.startswith(f"imageshards-{stem}-")
    assert name == job_name(output.rstrip("/")) != job_name(output.rstrip("/") + "2")
    monkeypatch.chdir(tmp_path)  # a folder has one name however it is written
    assert job_name("out") == job_name(f"{tmp_path}/x/../out/")


@pytest.mark.process
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("", "You must specify a --job_endpoint"),
        ("--job_endpoint NOBODY --job_server_timeout 1", "no job service answers there"),
        ("--job_endpoint SILENT --job_server_timeout 1", "no job service answers there"),
    ],
)
@pytest.mark.one_row
def test_a_missing_job_service_leaves_one_sentence(flags, sentence, silent, tmp_path):
    addresses = {"NOBODY": free_addresses(1)[0], "SILENT": silent}
    given = [addresses.get(word, word) for word in flags.split()]
    photos, output = builds.class_folders(tmp_path / "in", {"cat": 2, "dog": 2}), tmp_path / "set"
    folders = ["--input", str(photos), "--output", str(output)]
    code, said = portable_servers.run_here(*folders, "--runner", "PortableRunner", *given)
    assert code == 2 and sentence in said, said
    assert "Traceback" not in said and not output.exists()
