"""The Kubernetes manifests agree with each other and with the program they run."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml  # type: ignore[import-untyped]

from beam_pipeline import cli
from beam_pipeline.runners.choice import check_flags
from beam_pipeline.runners.flags import POOL_ADDRESS
from imageshards.errors import UserError

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "flink" / "kubernetes"


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict]:
    return {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml")}


@pytest.fixture(scope="module")
def containers(manifests) -> dict[str, dict]:
    pod = manifests["cluster"]["spec"]["taskManager"]["podTemplate"]["spec"]
    found = {each["name"]: each for each in pod["containers"]}
    return found | {"build": manifests["submit"]["spec"]["template"]["spec"]["containers"][0]}


def test_the_cluster_is_of_a_flink_that_beam_has_and_its_image_of_the_same(manifests):
    spec = manifests["cluster"]["spec"]
    # Configuration is text to the operator: a bare number is refused by the API server.
    assert all(isinstance(value, str) for value in spec["flinkConfiguration"].values())
    version = re.match(r"flink:(\d+)\.(\d+)\.\d+", spec["image"])
    assert version is not None
    assert spec["flinkVersion"] == f"v{version[1]}_{version[2]}"
    dockerfile = (FOLDER / "Dockerfile").read_text()
    assert f"ARG FLINK_VERSION={version[1]}.{version[2]}\n" in dockerfile
    check_flags([f"--flink_version={version[1]}.{version[2]}"])


def test_the_side_car_is_the_pool_that_builds_ask_for_with_a_core_for_every_slot(
    manifests, containers
):
    assert containers.keys() == {"flink-main-container", "worker-pool", "build"}
    pool = containers["worker-pool"]
    assert pool["command"][:3] == ["python", "-m", "apache_beam.runners.worker.worker_pool_main"]
    port = pool["command"][pool["command"].index("--service_port") + 1]
    assert POOL_ADDRESS == f"localhost:{port}"
    assert f'("localhost", {port})' in pool["readinessProbe"]["exec"]["command"][2]
    slots = manifests["cluster"]["spec"]["flinkConfiguration"]["taskmanager.numberOfTaskSlots"]
    assert pool["resources"]["requests"]["cpu"] == int(slots)
    assert containers["build"]["image"] == pool["image"]


def test_all_share_the_folder_that_is_claimed(manifests, containers):
    claim = manifests["storage"]["metadata"]["name"]
    assert manifests["storage"]["spec"]["accessModes"] == ["ReadWriteMany"]
    pods = [
        manifests["cluster"]["spec"]["taskManager"]["podTemplate"]["spec"],
        manifests["submit"]["spec"]["template"]["spec"],
    ]
    for pod in pods:
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
    assert {tuple(each["volumeMounts"][0].values()) for each in containers.values()} == {
        ("shared", "/shared")
    }


def test_the_build_is_a_command_that_the_program_takes(manifests, containers):
    command = containers["build"]["command"]
    assert command[:3] == ["python", "-m", "beam_pipeline"]
    known, beam = cli.make_parser().parse_known_args(command[3:])
    assert known.num_shards
    check_flags(beam)
    with pytest.raises(UserError):
        check_flags([*beam, "--no_such_flag"])
    service = f"{manifests['cluster']['metadata']['name']}-rest:8081"
    assert f"--flink_master={service}" in command
