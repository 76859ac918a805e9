import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imageshards as ims
from imageshards.adoption.command import main as adopt_main
from imageshards.errors import DamagedManifestError, UserError
from imageshards.manifest import IndexFile, Roles, Shard, Split
from imageshards.manifest.file import check_folders, common_root
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused
from tests.support.manifests import blank, shards_of, write_manifest
from trainer.commands import parse_config
from trainer.dataset.manifest import load_manifest


@pytest.mark.parametrize(
    ("folder", "root", "is_allowed"),
    [
        ("train/a", None, True),
        ("/etc", None, False),
        ("/data/a/b", "/data/a/", True),
        ("/data/ab", "/data/a", False),
        ("/data/b", "/data/a/../b", True),
        ("s3://bucket/a", "s3://bucket", True),
        ("s3://bucket2/a", "s3://bucket", False),
        ("s3://bucket/a", "/", False),
        ("//etc", "/data", False),
    ],
)
def test_a_folder_is_allowed_below_the_place_that_the_user_names(folder, root, is_allowed):
    shard = Shard("a", 0, 0, "0" * 64, {}, IndexFile("index/a", 0, "0" * 64), folder)
    manifest = blank(splits={"train": Split(0, [shard])}, adopted=Roles("i", "label", None, None))
    if is_allowed:
        check_folders("data", "x", manifest, root)
    else:
        with refused("data", f"are in '{folder}', outside", "records_root='"):
            check_folders("data", "x", manifest, root)


def test_the_lowest_common_place_is_proposed():
    assert common_root(["/data/train", "/data/validation/"]) == "/data"
    assert common_root(["s3://b/x/a", "s3://b/x/b"]) == "s3://b/x"
    assert common_root(["s3://a/x", "s3://b/x"]) == ""


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Shards alone, and a dataset adopted from them in another folder."""
    made = tmp_path_factory.mktemp("sets")
    whole = Dataset(made / "built", {"train": 1}, per_shard=2)
    (made / "theirs").mkdir()
    for file in whole.payloads:
        shutil.copy(whole.directory / file, made / "theirs")
    assert adopt_main([str(made / "theirs"), "--output", str(made / "mine")]) == 0
    return made / "mine", made / "theirs"


def _read_to_train(folder: Path, root: Path | None) -> Any:
    flags = ["--data", str(folder), *(["--records_root", str(root)] if root else [])]
    config = parse_config(flags).read
    return load_manifest(config.data, config.records_root)


OPENS: dict[str, Callable[[Path, Path | None], Any]] = {
    "ims.verify": lambda folder, root: ims.verify(folder, workers=1, records_root=root),
    "ims.report": lambda folder, root: ims.report(folder, records_root=root),
    "ims.duplicates": lambda folder, root: ims.duplicates(folder, workers=1, records_root=root),
    "train": _read_to_train,
    "ims.open": lambda folder, root: list(ims.open(folder, records_root=root).source("train")),
    "ims.load_manifest": lambda at, root: ims.load_manifest(at, adopted=True, records_root=root),
}


@pytest.mark.parametrize("name", OPENS)
def test_each_command_needs_records_root_for_shards_elsewhere(sets, name):
    mine, theirs = sets
    OPENS[name](mine, theirs)
    for root in (None, mine):
        with pytest.raises(UserError, match=f"'{theirs}', outside .*records_root"):
            OPENS[name](mine, root)


def test_adopt_names_the_flag_for_its_dataset_and_may_be_repeated(sets, tmp_path, capsys):
    _, theirs = sets
    for _ in range(2):
        assert adopt_main([str(theirs), "--output", str(tmp_path / "mine")]) == 0
        assert f"every command needs --records_root {theirs}\n" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["..", "../x", "a/../../x", "/data/../etc", "./a", "a\0b"])
def test_a_folder_that_leads_upwards_is_refused(sets, tmp_path, folder):
    mine, _ = sets
    manifest = json.loads((mine / "manifest.json").read_text())
    for _, shard in shards_of(manifest):
        shard["folder"] = folder
    write_manifest(str(tmp_path), manifest)
    with pytest.raises(DamagedManifestError, match="folder is .*; expected a folder, without"):
        ims.load_manifest(tmp_path, adopted=True, records_root="/")
