"""The images of workers and of the trainer, and the commands that run in them."""

import re
import shutil
import subprocess
import sys
import zipfile

import apache_beam
import pytest
import yaml  # type: ignore[import-untyped]

import imageshards
from beam_pipeline import cli
from beam_pipeline.columns.tensorflow_settings import SETTINGS
from beam_pipeline.runners.flags import POOL_ADDRESS
from beam_pipeline.runners.runner import check_flags
from tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
FLINK = DEPLOY / "flink" / "kubernetes"


@pytest.mark.process
@pytest.mark.parametrize("folder", ["dataflow", "kubernetes", "flink/kubernetes"])
@pytest.mark.one_row
def test_pip_builds_the_package_from_the_files_that_an_image_copies(folder, tmp_path):
    dockerfile = (DEPLOY / folder / "Dockerfile").read_text()
    ignore = (DEPLOY / folder / "Dockerfile.dockerignore").read_text().splitlines()
    for line, target in re.findall(r"^COPY (?!--from)(.*) (\S+)$", dockerfile, re.M):
        for name in line.split():
            assert f"!{name}" in ignore
            place = tmp_path / "src" / (target if target != "./" else name)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
            copy(REPOSITORY / name, place)
    (extras,) = re.findall(r'"\.\[([^]]*)\]"', dockerfile)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--wheel-dir", tmp_path, f".[{extras}]"],
        cwd=tmp_path / "src", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob(f"imageshards-{imageshards.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (metadata,) = (packed.read(name) for name in packed.namelist() if "METADATA" in name)
    for extra in extras.split(","):
        assert f'extra == "{extra}"'.encode() in metadata


def test_the_image_of_dataflow_has_the_tested_beam_and_our_settings_of_tensorflow() -> None:
    dockerfile = (DEPLOY / "dataflow" / "Dockerfile").read_text()
    assert f"ARG BEAM={apache_beam.__version__}\n" in dockerfile
    for name, value in SETTINGS.items():
        assert f"{name}={value}" in dockerfile


def test_containers_that_read_a_bucket_get_the_secret_that_the_guide_creates() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "clusters.md").read_text()
    (secret,) = re.findall(r"kubectl create secret generic (\S+)", guide)
    job = yaml.safe_load((FLINK / "submit.yaml").read_text())["spec"]["template"]
    pods = yaml.safe_load((FLINK / "cluster.yaml").read_text())["spec"]["taskManager"][
        "podTemplate"
    ]
    _, pool = pods["spec"]["containers"]
    for container in (*job["spec"]["containers"], pool):
        assert container["envFrom"] == [{"secretRef": {"name": secret}}]


def test_the_build_on_flink_is_a_command_that_the_program_takes() -> None:
    job = yaml.safe_load((FLINK / "submit.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "beam_pipeline"]
    known, beam = cli.make_parser().parse_known_args(container["command"][3:])
    assert known.num_shards
    check_flags(beam)
    host, port = POOL_ADDRESS.split(":")
    assert f'"{host}", {port}' in (FLINK / "cluster.yaml").read_text()
