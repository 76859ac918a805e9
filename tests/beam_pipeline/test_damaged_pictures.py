"""JPEGs that decode, but with damage that libjpeg warns about: counted, listed, left out."""

from __future__ import annotations

import pytest

from tests.support.builds import build, class_folders, jpeg, manifest, rejects_of, shard_bytes
from tests.support.pictures import damaged_jpeg

pytestmark = pytest.mark.process

DAMAGED = ["cat/damaged.jpg", "dog/damaged.jpg"]


def test_they_are_found_where_that_is_asked_for(tmp_path, capfd):
    photos = class_folders(tmp_path / "in", {"cat": 8, "dog": 8})
    for number, key in enumerate(DAMAGED):
        (photos / key).write_bytes(damaged_jpeg(jpeg(number, 300, 200, quality=95)))
    (photos / "cat" / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    made = {}
    for name, *more in (
        ("plain", "--input", photos),
        ("counted", "--input", photos, "--check_damage"),
        ("rejected", "--input", photos, "--reject_damaged"),
        ("copied", "--input", tmp_path / "counted", "--check_damage"),
    ):
        flags = ["--output", tmp_path / name, "--splits", "train=1", "--num_shards", "2"]
        budget = ["--image_size", "32", "--max_reject_fraction", "0.5"]
        assert build(*flags, *budget, *more) == 0
        made[name] = manifest(tmp_path / name), capfd.readouterr().out

    (plain, _), (counted, said) = made["plain"], made["counted"]
    assert "damaged" not in plain
    found = counted["damaged"]
    assert (found["num_checked"], found["num_images"], list(found["keys"])) == (18, 2, DAMAGED)
    assert all(text.startswith("Corrupt JPEG data") for text in found["keys"].values())
    assert "2 of 18 JPEGs damaged, but decoded: 'cat/damaged.jpg'" in " ".join(said.split())
    page = (tmp_path / "counted" / "report" / "index.html").read_text()
    assert "2 images of 18" in page and DAMAGED[1] in page
    # What was looked for changes nothing.
    assert shard_bytes(tmp_path / "counted") == shard_bytes(tmp_path / "plain")
    assert counted["fingerprint"] == plain["fingerprint"]

    rejected, _ = made["rejected"]
    assert rejected["rejects"] == {"damaged": 2, "corrupt": 1}
    assert (rejected["damaged"]["num_checked"], rejected["damaged"]["num_images"]) == (16, 0)
    assert "simplejpeg" in rejected["versions"]
    rows = rejects_of(tmp_path / "rejected")
    assert [(rows[k]["reason"], rows[k]["stage"]) for k in DAMAGED] == [("damaged", "decode")] * 2

    assert "damaged" not in made["copied"][0]  # a record tells nothing of its original
