"""The images of workers and of the trainer, and the commands that run in them."""

import re

import apache_beam
import pytest
import yaml  # type: ignore[import-untyped]

from beam_pipeline import cli
from beam_pipeline.columns.tensorflow_settings import SETTINGS
from beam_pipeline.runners.flags import POOL_ADDRESS
from beam_pipeline.runners.runner import check_flags
from tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
FLINK = DEPLOY / "flink" / "kubernetes"


@pytest.mark.parametrize("folder", ["dataflow", "kubernetes"])
def test_an_image_is_made_of_files_that_are_there_and_not_ignored(folder: str) -> None:
    dockerfile = (DEPLOY / folder / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.M)
    names = [name for line in copied for name in line.split()]
    ignore = (DEPLOY / folder / "Dockerfile.dockerignore").read_text().splitlines()
    assert names
    for name in names:
        assert (REPOSITORY / name).exists() and f"!{name}" in ignore


def test_the_image_of_dataflow_has_the_tested_beam_and_our_settings_of_tensorflow() -> None:
    dockerfile = (DEPLOY / "dataflow" / "Dockerfile").read_text()
    assert f"ARG BEAM={apache_beam.__version__}\n" in dockerfile
    for name, value in SETTINGS.items():
        assert f"{name}={value}" in dockerfile


def test_the_build_on_flink_is_a_command_that_the_program_takes() -> None:
    job = yaml.safe_load((FLINK / "submit.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "beam_pipeline"]
    known, beam = cli.make_parser().parse_known_args(container["command"][3:])
    assert known.num_shards
    check_flags(beam)
    host, port = POOL_ADDRESS.split(":")
    assert f'"{host}", {port}' in (FLINK / "cluster.yaml").read_text()
