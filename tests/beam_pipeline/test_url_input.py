"""Builds from a labelled list of addresses."""

import random

import pytest
from PIL import Image

from tests.support.builds import build, build_set, jpeg, manifest, rejects_of, shard_bytes
from tests.support.built_records import assert_records_are_as_described
from tests.support.pictures import saved
from tests.support.web_server import WebServer

pytestmark = pytest.mark.process

PICTURES = {f"/{kind}/{i}.jpg": jpeg(100 * k + i) for k, kind in enumerate("ab") for i in range(6)}
WRONG = {"/gone.jpg": "http_404", "/html": "web_page", "/silent": "url_timeout"}
FEW_TRIES = ("--url_timeouts", "9,3,9", "--url_retries", "0")
FLAGS = ("--image_size", "16", "--num_shards", "1", "--max_reject_fraction", "0.5", *FEW_TRIES)


def test_a_list_of_addresses_becomes_a_dataset_and_failures_have_their_status(tmp_path):
    with WebServer(PICTURES) as server:
        root, path = server.url, tmp_path / "list.csv"
        rows = [f"{root}{picture},{'ab'['/b/' in picture]}" for picture in [*PICTURES, *WRONG]]
        path.write_text("\n".join(["url,label", *rows]) + "\n")
        output = build_set(path, tmp_path / "set", *FLAGS, "--allow_private_hosts")
    assert manifest(output)["rejects"] == dict.fromkeys(sorted(WRONG.values()), 1)
    assert sum(split["num_records"] for split in manifest(output)["splits"].values()) == 12
    rejects = {row["uri"]: row for row in rejects_of(output).values()}
    assert {uri.removeprefix(root): row["reason"] for uri, row in rejects.items()} == WRONG
    assert rejects[root + "/gone.jpg"]["message"] == f"{root}/gone.jpg answered 404 Not Found"
    assert assert_records_are_as_described(output)


def test_a_resumed_build_keeps_its_shards_when_a_picture_is_gone(tmp_path, capsys):
    """That picture is so large that without it another number of shards would be planned."""
    noise = Image.frombytes("RGB", (128, 128), random.Random(1).randbytes(3 * 128 * 128))
    pictures = {"/noise.jpg": saved(noise), **{f"/{i}.jpg": jpeg(i, 16, 16) for i in range(12)}}
    path, output = tmp_path / "list.csv", tmp_path / "set"
    with WebServer(pictures) as server:
        rows = [f"{server.url}{picture},{'ab'[len(picture) % 2]}" for picture in pictures]
        rows += [f"{server.url}/gone.jpg,a"]
        path.write_text("\n".join(["url,label", *rows]) + "\n")
        command = ["--input", path, "--output", output, "--allow_private_hosts", *FEW_TRIES]
        command += ["--shard_mb", "0.008", "--splits", "train=1", "--image_size", "128"]
        assert build(*command, "--max_reject_fraction", "0") == 2  # after all shards were written
        before = {found.name for found in (output / ".staging").glob("train-*.tfrecord")}
        del pictures["/noise.jpg"]
        capsys.readouterr()
        assert build(*command, "--max_reject_fraction", "0.5") == 0
    assert set(shard_bytes(output)) == before
    assert "images were finished by an earlier run" in capsys.readouterr().out
