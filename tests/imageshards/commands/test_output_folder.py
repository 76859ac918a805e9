import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import imageshards as ims
from beam_pipeline.commit.staging import check_output, prepare_staging, read_output_state
from imageshards import storage
from imageshards.adoption.command import adopt
from imageshards.commands.output_folder import check_page_folder
from imageshards.errors import UserError
from imageshards.page import render
from imageshards.storage.lease import output_lock
from tests.support.dataset_factory import Dataset
from tests.support.errors import refused

OURS = render("imageshards.page", "base.jinja", title="t", what="w", tiles=[], parts=[])
MINE = "<!DOCTYPE html><title>mine</title>"


@pytest.mark.parametrize(
    ("files", "foreign"),
    [
        ({}, None),
        ({"notes.txt": ""}, None),  # nothing writes there
        ({"index.html": OURS, "keys.txt": ""}, None),
        ({"index.html": MINE, "keys.txt": ""}, "'index.html', 'keys.txt'"),
        ({"keys.txt": ""}, "'keys.txt'"),
    ],
)
def test_a_page_replaces_only_a_former_page(tmp_path, files, foreign):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if foreign is None:
        for folder in (tmp_path, tmp_path / "new"):
            check_page_folder("--report", str(folder), "keys.txt")
        return
    with pytest.raises(UserError, match=rf"^--report .* accounts for \({foreign}\); expected"):
        check_page_folder("--report", str(tmp_path), "keys.txt")


@pytest.fixture
def home(tmp_path):
    """A folder of the user, to which the links of a stranger's dataset lead."""
    folder = tmp_path / "home"
    for name in ("index.html", "lock", "a.parquet", "deep/notes.tmp-2024.csv", "x.tmp-863179ee"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def replaced(folder):
    state = read_output_state(str(folder), f"{folder}/.staging")
    check_output(state, overwrite=True)
    prepare_staging(state)


COMMANDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "report": ("report", ims.report),
    "duplicates": ("duplicates", lambda folder: ims.duplicates(folder, workers=1)),
    "adopt": ("index", lambda folder: adopt(folder.parent / "records", output=folder)),
    "build": ("index", replaced),
    "build's transform": ("transform/transform_fn", replaced),
    "build's spool": (".staging/spool", replaced),
    "a lock": (".staging", lambda folder: output_lock(f"{folder}/.staging/lock").__enter__()),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_writes_or_deletes_behind_a_link_of_a_dataset(tmp_path, home, name):
    link, command = COMMANDS[name]
    dataset = Dataset(tmp_path / "set", {"train": 1}, per_shard=2)
    if name == "adopt":
        (tmp_path / "records").mkdir()
        for file in dataset.payloads:
            (dataset.directory / file).rename(tmp_path / "records" / file)
        shutil.rmtree(dataset.directory)
    path = dataset.directory / link
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    path.symlink_to(home)
    with refused(None, link.rpartition("/")[2], "is a link"):
        command(dataset.directory)
    storage.delete_unfinished(str(dataset.directory), "*")
    path.unlink()  # as the sentence says
    command(dataset.directory)


def test_links_in_the_folders_of_a_dataset_are_not_followed(tmp_path, home):
    dataset = Dataset(tmp_path / "set", {"train": 1}, per_shard=2).directory
    for folder in ("report", "index", "quarantine", "duplicates"):
        (dataset / folder).mkdir(exist_ok=True)
        for name, target in {"a": ".", "b": ".", "home": home, "top": "/"}.items():
            (dataset / folder / name).symlink_to(target)
    assert ims.verify(dataset, workers=1).ok
    assert ims.report(dataset) == f"{dataset}/report/index.html"
    ims.duplicates(dataset, workers=1)
