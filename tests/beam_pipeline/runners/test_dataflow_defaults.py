"""Flags of Dataflow that are filled in, and the image for its workers."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import apache_beam
import pytest

from beam_pipeline.runners import dataflow_defaults, defaults
from beam_pipeline.runners import select as runners
from tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy" / "dataflow"


def filled(*beam_args: str, **environ: str) -> dict[str, str]:
    return {flag: value for flag, value, _ in dataflow_defaults.defaults(beam_args, environ)}


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
def test_flags_that_can_be_known_are_filled_in(
    given: tuple[str, ...], environ: dict[str, str], expected: dict[str, Any]
) -> None:
    found = filled(*given, **environ)
    assert {flag: found.get(flag) for flag in expected} == expected


def test_every_filled_flag_has_a_reason_and_is_one_of_beam_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--runner=DataflowRunner", "--temp_location=gs://b/t", "--sdk_container_image=i"]
    added = defaults.fill(given)[len(given) :]
    said = capsys.readouterr().err.splitlines()
    runners.check_flags(added)
    assert len(added) == len(said) >= 4
    assert all(line.startswith(f"{flag}: ") for flag, line in zip(added, said, strict=True))


def test_without_an_image_the_price_of_that_is_said() -> None:
    reasons = {flag: why for flag, _, why in dataflow_defaults.defaults([], {})}
    assert "each also downloads TensorFlow" in reasons["setup_file"]
    reasons = {
        flag: why for flag, _, why in dataflow_defaults.defaults(["--sdk_container_image=i"], {})
    }
    assert "TensorFlow" not in reasons["setup_file"]


@pytest.mark.parametrize("setup", [None, "setuptools.setup(name='another')\n"])
def test_an_installed_package_is_no_checkout(tmp_path: pathlib.Path, setup: str | None) -> None:
    package = tmp_path / "beam_pipeline"
    package.mkdir()
    if setup is not None:
        (tmp_path / "setup.py").write_text(setup)
    assert dataflow_defaults.checkout_setup(package) is None


def test_the_image_has_the_versions_that_are_locked_and_tested() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BEAM=(\S+)$", dockerfile, re.M)[1] == apache_beam.__version__  # type: ignore[index]
    python = re.search(r"^ARG PYTHON=(\S+)$", dockerfile, re.M)[1]  # type: ignore[index]
    assert (
        f"apache-beam=={apache_beam.__version__}\n" in (REPOSITORY / "constraints.txt").read_text()
    )
    assert python in ("3.11", "3.12", "3.13")


def test_the_image_is_made_of_files_that_are_there_and_not_ignored() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.M)
    names = [name for line in copied for name in line.split()]
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert names
    for name in names:
        assert (REPOSITORY / name).is_file()
        assert f"!{name}" in ignore


def test_the_image_sets_for_tensorflow_what_its_module_sets() -> None:
    from beam_pipeline.columns.tensorflow_settings import SETTINGS

    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for name, value in SETTINGS.items():
        assert f"{name}={value}" in dockerfile
