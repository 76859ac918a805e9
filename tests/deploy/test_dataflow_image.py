"""The images of Dataflow's workers and of the trainer, as their Dockerfiles describe them."""

from __future__ import annotations

import re

import apache_beam
import pytest

from tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy" / "dataflow"


def test_the_image_has_the_versions_that_are_locked_and_tested() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BEAM=(\S+)$", dockerfile, re.M)[1] == apache_beam.__version__  # type: ignore[index]
    python = re.search(r"^ARG PYTHON=(\S+)$", dockerfile, re.M)[1]  # type: ignore[index]
    assert (
        f"apache-beam=={apache_beam.__version__}\n" in (REPOSITORY / "constraints.txt").read_text()
    )
    assert python in ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("folder", ["dataflow", "kubernetes"])
def test_an_image_is_made_of_files_that_are_there_and_not_ignored(folder: str) -> None:
    dockerfile = (DEPLOY.parent / folder / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.M)
    names = [name for line in copied for name in line.split()]
    ignore = (DEPLOY.parent / folder / "Dockerfile.dockerignore").read_text().splitlines()
    assert names
    for name in names:
        assert (REPOSITORY / name).exists() and f"!{name}" in ignore


def test_the_image_sets_for_tensorflow_what_its_module_sets() -> None:
    from beam_pipeline.columns.tensorflow_settings import SETTINGS

    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for name, value in SETTINGS.items():
        assert f"{name}={value}" in dockerfile
