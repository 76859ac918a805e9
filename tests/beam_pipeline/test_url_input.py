"""Builds from a labelled list of addresses."""

from __future__ import annotations

import pytest

from imageshards.verification import command as verify
from tests.support.builds import build, jpeg, manifest, rejects_of
from tests.support.built_records import assert_records_are_as_described
from tests.support.web_server import WebServer

pytestmark = pytest.mark.process

PICTURES = {f"/{kind}/{i}.jpg": jpeg(100 * k + i) for k, kind in enumerate("ab") for i in range(6)}
WRONG = {"/gone.jpg": "http_404", "/html": "web_page", "/silent": "url_timeout"}
FLAGS = (
    "--image_size", "16", "--num_shards", "1", "--max_reject_fraction", "0.5",
    "--url_timeouts", "9,3,9", "--url_retries", "0",
)  # fmt: skip


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    with WebServer(PICTURES) as server:
        root = server.url
        path = tmp_path_factory.mktemp("list") / "list.csv"
        rows = [f"{root}{picture},{'ab'['/b/' in picture]}" for picture in [*PICTURES, *WRONG]]
        path.write_text("\n".join(["url,label", *rows]) + "\n")
        yield path, root


def test_a_list_of_addresses_becomes_a_data_set_and_failures_have_their_status(listed, tmp_path):
    path, root = listed
    output = tmp_path / "set"
    assert build("--input", path, "--output", output, *FLAGS, "--allow_private_hosts") == 0
    assert manifest(output)["rejects"] == dict.fromkeys(sorted(WRONG.values()), 1)
    assert sum(split["num_records"] for split in manifest(output)["splits"].values()) == 12
    rejects = {row["uri"]: row for row in rejects_of(output).values()}
    assert {uri.removeprefix(root): row["reason"] for uri, row in rejects.items()} == WRONG
    assert rejects[root + "/gone.jpg"]["message"] == f"{root}/gone.jpg answered 404 Not Found"
    assert verify.main([str(output)]) == 0
    assert assert_records_are_as_described(output)


def test_private_hosts_need_a_flag(listed, tmp_path, capsys):
    path, _ = listed
    assert build("--input", path, "--output", tmp_path / "set", *FLAGS) == 2
    assert "(url_private_address 15)" in capsys.readouterr().err
    assert not (tmp_path / "set" / "manifest.json").exists()
