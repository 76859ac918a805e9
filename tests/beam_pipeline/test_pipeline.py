"""Whole builds on Beam's local runner, from folders and from addresses: what is on disk then."""

import random
import shutil

import pytest
from PIL import Image

from imageshards import storage
from tests.support import builds
from tests.support.builds import jpeg
from tests.support.built_records import assert_records_are_as_described
from tests.support.commit_steps import spreads
from tests.support.icc_profiles import DISPLAY_P3, rgb_profile
from tests.support.manifests import shards_of
from tests.support.pictures import saved, scene
from tests.support.web_server import WebServer

pytestmark = pytest.mark.process


COUNTS = {"ant": 31, "bee's nest": 17, "Čmelák": 9}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = builds.class_folders(tmp_path_factory.mktemp("in") / "my photos", COUNTS)
    (root / "ant" / "notes.txt").write_text("not an image")
    (root / "ant" / ".hidden.jpg").write_bytes(jpeg(1))
    (root / "stray.jpg").write_bytes(jpeg(2))
    (root / "ant" / "folder.jpg").mkdir()
    (root / "ant" / "folder.jpg" / "DEEP.JPG").write_bytes(jpeg(3))
    return root


FLAGS = ["--image_size", "32", "--num_shards", "train=5,validation=2"]


@pytest.fixture(scope="module")
def built(photos, tmp_path_factory):
    return builds.build_set(photos, tmp_path_factory.mktemp("out") / "set", *FLAGS)


def test_every_image_is_in_one_record_with_its_label(photos, built):
    found = {key: r["image/class/text"][0].decode() for key, r in builds.records_of(built).items()}
    expected = {f"{name}/{name} {i}.jpg": name for name, n in COUNTS.items() for i in range(n)}
    assert found == expected | {"ant/folder.jpg/DEEP.JPG": "ant"}
    assert builds.manifest(built)["listed"] == len(found) == 58


def test_a_sample_and_its_stratified_splits_are_counted_and_recorded(photos, built, tmp_path):
    flags = ["--limit", "29", "--stratify", "--splits", "a=0.5,b=0.5", "--image_size", "32"]
    said = builds.manifest(made := builds.build_set(photos, tmp_path / "set", *flags))
    assert (said["listed"], said["skipped"]["not_sampled"]) == (29, 29)
    for name, least in {"ant": 8, "bee's nest": 4, "Čmelák": 2}.items():
        records = builds.records_of(made).values()
        of_class = [r["split"] for r in records if r["image/class/text"] == [name.encode()]]
        counts = [of_class.count(split) for split in "ab"]
        assert sum(counts) in (2 * least, 2 * least + 1) and min(counts) >= least
    options = said["options"], builds.manifest(built)["options"]
    assert [each["plan"].get("stratify") for each in options] == [True, None]
    assert [each.get("limit") for each in options] == [29, None]


def test_the_folder_is_a_dataset_that_passes_verify_and_nothing_else(built):
    assert builds.manifest(built)["skipped"] == {
        "hidden": 1, "not_an_image_name": 1, "outside_class_folders": 1,
    }  # fmt: skip
    assert builds.manifest(built)["classes"] == sorted(COUNTS)
    assert assert_records_are_as_described(built)
    recorded = {*builds.manifest(built)["files"], "manifest.json"}
    for _, shard in shards_of(builds.manifest(built)):
        recorded |= {shard["file"], shard["index"]["file"]}
    found = {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith("report/")} == recorded


def test_bytes_do_not_depend_on_the_number_of_processes(photos, built, tmp_path):
    output = builds.build_set(photos, tmp_path / "set", *FLAGS, "--direct_num_workers", 3)
    assert builds.shard_bytes(output) == builds.shard_bytes(built)
    assert builds.manifest(output) == builds.manifest(built)


def test_rejects_leave_no_holes_and_go_to_quarantine(photos, tmp_path, capsys):
    root = shutil.copytree(photos, tmp_path / "in")
    for i in range(0, 31, 3):
        (root / "ant" / f"ant {i}.jpg").write_bytes(b"" if i % 2 else jpeg(i)[:300])
    output = tmp_path / "out"
    flags = ["--input", root, "--output", output, *FLAGS]
    assert builds.build(*flags) == 2
    said = capsys.readouterr().err
    assert "--max_reject_fraction received 0.01" in said and "empty" in said
    assert not (output / "manifest.json").exists()
    assert builds.build(*flags, "--max_reject_fraction", "0.5") == 0
    found = builds.manifest(output)
    assert sum(found["rejects"].values()) == 11
    assert spreads(output) <= {0, 1}
    assert assert_records_are_as_described(output) + 11 == found["listed"] == 58
    broken = {key: [(root / key).read_bytes()] for key in builds.quarantined(output)}
    assert len(broken) == 11 and builds.quarantined(output) == broken


@pytest.mark.long
def test_pictures_of_phones_are_read_converted_and_counted(tmp_path, capsys):
    p3 = rgb_profile(DISPLAY_P3)
    turned = Image.Exif()
    turned[0x0112] = 6
    files = {
        "ant/p3.jpg": jpeg(1, icc_profile=p3), "ant/plain.jpg": jpeg(2),
        "ant/cut.heic": saved(scene(), "HEIF")[:-200], "ant/raw.nef": b"",
        "bee/phone.HEIC": saved(scene(), "HEIF", icc_profile=p3, exif=turned.tobytes()),
        "bee/web.avif": saved(scene(), "AVIF"), "bee/odd.jpg": jpeg(3, icc_profile=b"wrong"),
    }  # fmt: skip
    for name, data in files.items():
        storage.write(f"{tmp_path}/in/{name}", data)
    flags = ["--splits", "train=1", "--no_report", "--resize_mode", "none"]
    flags += ["--max_reject_fraction", "0.2"]
    output = builds.build_set(tmp_path / "in", tmp_path / "out", *flags)
    assert "the build skips for their endings: '.nef'" in capsys.readouterr().out
    source = builds.manifest(output)["source"]
    assert source["formats"] == {"JPEG": 3, "AVIF": 1, "HEIF": 1}
    assert (source["notes"]["icc_converted"], source["notes"]["icc_broken"]) == (2, 1)
    assert builds.quarantined(output) == {"ant/cut.heic": [files["ant/cut.heic"]]}
    more = ["--icc", "drop", "--no_quarantine_bytes"]
    plain = builds.build_set(tmp_path / "in", tmp_path / "plain", *flags, *more)
    assert builds.quarantined(plain) == {"ant/cut.heic": None}
    kept, made = builds.records_of(plain), builds.records_of(output)
    differ = {key for key in made if made[key]["image/encoded"] != kept[key]["image/encoded"]}
    assert differ == {"ant/p3.jpg", "bee/phone.HEIC"}
    phone = made["bee/phone.HEIC"]
    assert (phone["image/width"], phone["image/height"]) == ([120], [160])


PICTURES = {f"/{kind}/{i}.jpg": jpeg(100 * k + i) for k, kind in enumerate("ab") for i in range(6)}
WRONG = {"/gone.jpg": "http_404", "/html": "web_page", "/silent": "url_timeout"}
FEW_TRIES = ("--url_timeouts", "9,3,9", "--url_retries", "0")


def test_a_list_of_addresses_becomes_a_dataset_and_failures_have_their_status(tmp_path):
    with WebServer(PICTURES) as server:
        root, path = server.url, tmp_path / "list.csv"
        rows = [f"{root}{picture},{'ab'['/b/' in picture]}" for picture in [*PICTURES, *WRONG]]
        path.write_text("\n".join(["url,label", *rows]) + "\n")
        flags = ["--image_size", "16", "--num_shards", "1", "--max_reject_fraction", "0.5"]
        flags += [*FEW_TRIES, "--allow_private_hosts"]
        output = builds.build_set(path, tmp_path / "set", *flags)
    assert builds.manifest(output)["rejects"] == dict.fromkeys(sorted(WRONG.values()), 1)
    assert sum(split["num_records"] for split in builds.manifest(output)["splits"].values()) == 12
    rejects = {row["uri"]: row for row in builds.rejects_of(output).values()}
    assert {uri.removeprefix(root): row["reason"] for uri, row in rejects.items()} == WRONG
    assert rejects[root + "/gone.jpg"]["message"] == f"{root}/gone.jpg answered 404 Not Found"
    assert assert_records_are_as_described(output)


def test_a_resumed_build_keeps_its_shards_when_a_picture_is_gone(tmp_path, capsys):
    """That picture is so large that without it another number of shards would be planned."""
    noise = Image.frombytes("RGB", (128, 128), random.Random(1).randbytes(3 * 128 * 128))
    pictures = {"/noise.jpg": saved(noise)} | {f"/{i}.jpg": jpeg(i, 16, 16) for i in range(12)}
    path, output = tmp_path / "list.csv", tmp_path / "set"
    with WebServer(pictures) as server:
        rows = [f"{server.url}{picture},{'ab'[len(picture) % 2]}" for picture in pictures]
        rows += [f"{server.url}/gone.jpg,a"]
        path.write_text("\n".join(["url,label", *rows]) + "\n")
        command = ["--input", path, "--output", output, "--allow_private_hosts", *FEW_TRIES]
        command += ["--shard_mb", "0.008", "--splits", "train=1", "--image_size", "128"]
        # It ends after all shards were written.
        assert builds.build(*command, "--max_reject_fraction", "0") == 2
        before = {found.name for found in (output / ".staging").glob("train-*.tfrecord")}
        del pictures["/noise.jpg"]
        capsys.readouterr()
        assert builds.build(*command, "--max_reject_fraction", "0.5") == 0
    assert set(builds.shard_bytes(output)) == before
    assert "images were finished by an earlier run" in capsys.readouterr().out
