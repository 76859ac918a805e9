"""Which runner Beam's flags ask for, and flags that nobody knows."""

import pytest
from apache_beam.options.pipeline_options import DirectOptions, TypeOptions
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers

from beam_pipeline import cli
from beam_pipeline.options import BuildOptions, InputOptions
from beam_pipeline.runners.choice import choose
from imageshards.errors import UserError

BUILD = BuildOptions(InputOptions("gs://b/in"), "gs://b/out")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--image_sise", "3"], "^'--image_sise' .* did you mean --image_size?"),
        (["--direct_num_worker=3"], "did you mean --direct_num_workers?"),
        (["-xyzzy"], "^'-xyzzy' is a flag neither .* --help"),
        (["b.jpg", "c.jpg"], "^'b.jpg' belongs to no flag.*quotes"),
        (["--runner"], "--runner: expected one argument"),
        (["--direct_num_workers", "many"], "--direct_num_workers.*'many'"),
        (["--runner=SparkleRunner"], "Unexpected pipeline runner: SparkleRunner.*FlinkRunner"),
        (["--runner=no_such_module.Runner"], "No module named 'no_such_module'"),
        (["--direct_running_mode=multi_threading"], "multi_threading.; expected in_memory"),
    ],
    ids=lambda case: case[0] if isinstance(case, list) else "",
)
def test_a_flag_nobody_can_use_is_refused(argv, sentence, capsys):
    with pytest.raises(UserError, match=sentence) as error:
        choose(argv, BUILD, cli.make_parser().flags).new_pipeline()
    assert "\n" not in str(error.value)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["DirectRunner", "directrunner", "direct", "FnApiRunner"])
def test_the_local_runner_is_named_so_that_none_is_downloaded(name, monkeypatch):
    monkeypatch.setattr(worker_handlers, "STATE_CACHE_SIZE_MB", 100)
    chosen = choose(["--runner", name], BUILD)
    assert chosen.local
    assert type(chosen.new_pipeline().runner) is fn_runner.FnApiRunner
    direct = chosen.options.view_as(DirectOptions)
    assert (direct.direct_running_mode, direct.direct_num_workers) == ("in_memory", 1)
    # Neither types nor side inputs are looked at, which takes time.
    assert not chosen.options.view_as(TypeOptions).pipeline_type_check
    assert worker_handlers.STATE_CACHE_SIZE_MB == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("flink", "RemoteRunner"),
        ("apache_beam.runners.DataflowRunner", "DataflowRunner"),
        ("PortableRunner", "RemoteRunner"),
    ],
)
def test_a_named_runner_is_not_local_and_checks_types(name, kind):
    chosen = choose(["--runner", name], BUILD)
    assert (type(chosen).__name__, chosen.local) == (kind, False)
    assert chosen.options.view_as(TypeOptions).pipeline_type_check
