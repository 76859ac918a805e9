"""Manages the output and the staging folder of an unfinished dataset, also after a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import uuid
from typing import TypeVar

import msgspec

from beam_pipeline.inputs.folders import is_dataset
from beam_pipeline.inputs.spool import SPOOL_NAME
from beam_pipeline.option_texts import invalid
from beam_pipeline.planning.plan import PLAN_NAME
from beam_pipeline.shards.places import JOB_NAME, JobNotes
from beam_pipeline.shards.result import output_error
from imageshards import storage
from imageshards.commands.output_folder import check_no_links, foreign_files, foreign_files_error
from imageshards.errors import Arg, DamagedManifestError, UserError
from imageshards.manifest import (
    COMPANION_NAMES,
    DATASET_FOLDERS,
    INDEX_NAME,
    LOCK_NAME,
    MANIFEST_NAME,
    REPLACED_NAME,
    Manifest,
)
from imageshards.manifest.file import load_manifest
from imageshards.typed import Whole, decode

# The commit writes this file just before manifest.json.
COMMITTED_NAME = "committed.json"

_T = TypeVar("_T")


class Committed(msgspec.Struct, frozen=True):
    """Content of `COMMITTED_NAME`: the dataset that the job committed."""

    fingerprint: str = ""
    reused_images: Whole = 0  # images in shards that an earlier run had finished


@dataclasses.dataclass(frozen=True)
class OutputState:
    """Contents of an output folder, read once by the process that holds the output's lock."""

    output: str
    staging: str  # folder of the unfinished dataset
    manifest: Manifest | None
    damage: UserError | None  # the error of a manifest that cannot be read
    notes: JobNotes | None  # of the job that last used the staging folder
    foreign: tuple[str, ...]  # names of files and folders that no build has written

    @property
    def pinned_classes(self) -> tuple[str, ...]:
        """Classes, by id, of the dataset that is replaced; empty for a new dataset."""
        if self.manifest:
            return tuple(self.manifest.classes)
        # The commit removes the old manifest before the new one is written, but not the notes.
        return self.notes.pinned_classes if self.notes else ()


def read_output_state(output: str, staging: str) -> OutputState:
    """Reads the contents of an output folder, by requests that are sent at the same time."""
    (found, damage), notes, names = storage.run_concurrently(
        lambda: _manifest(output),
        lambda: _read_notes(staging, JOB_NAME, JobNotes),
        lambda: _names_in(output),
    )
    # A foreign program may also write a manifest.json.
    is_ours = bool(found or notes or (damage and is_dataset(output)))
    foreign = () if is_ours else tuple(foreign_files(names))
    return OutputState(output, staging, found, damage, notes, foreign)


def _manifest(output: str) -> tuple[Manifest | None, UserError | None]:
    """Returns the manifest, or the error of a damaged one; (None, None) without a manifest."""
    if not storage.exists(storage.join(output, MANIFEST_NAME)):
        return None, None
    try:
        return load_manifest(output, "output", adopted=False), None
    except DamagedManifestError as e:
        return None, e


def check_output(state: OutputState, overwrite: bool, digest: str = "") -> bool:
    """Raises `UserError` if a finished dataset, or files of other programs, are in the way.

    Returns True if an earlier run of this build was killed after it had committed the dataset.
    """
    check_no_links("output", state.output, *DATASET_FOLDERS, inside=True)
    if state.foreign:
        ours = "finished or unfinished build"
        raise foreign_files_error("output", state.output, list(state.foreign), ours)
    if state.damage and not overwrite:
        raise state.damage
    if overwrite or not state.manifest:
        return False
    is_ours = state.notes is not None and state.notes.digest == digest
    if is_ours and committed(state.staging).fingerprint == state.manifest.fingerprint:
        return True
    raise invalid(
        "output",
        f"{state.output!r}, which holds a finished dataset",
        remedy="choose another folder, or replace it with " + Arg("overwrite", True),
    )


def _read_notes(staging: str, name: str, kind: type[_T]) -> _T | None:
    """Returns the content of a JSON file; None if the file is missing or of another type."""
    # Any other OSError must end the step: without committed.json, `set_aside` would take this job's
    # own dataset for the old one.
    try:
        return decode(storage.read(storage.join(staging, name)), kind)
    except (FileNotFoundError, ValueError):
        return None


def set_aside(output: str, staging: str) -> None:
    """Removes the manifest after the old dataset was linked in the staging folder.

    The links stay until the new manifest is written. A second call does no harm.
    """
    path = storage.join(output, MANIFEST_NAME)
    if not storage.exists(path):
        return
    try:
        manifest = load_manifest(output, "output", adopted=False)
    except DamagedManifestError:  # without a readable manifest there is no dataset to keep
        storage.delete([path])
        return
    # An earlier attempt at the commit has written this manifest already.
    if committed(staging).fingerprint == manifest.fingerprint:
        return
    _link_dataset(output, storage.join(staging, REPLACED_NAME), manifest)
    storage.delete([path])


def _link_dataset(output: str, folder: str, manifest: Manifest) -> None:
    """Links the files of a dataset in another folder; copies them in a store."""
    shards = [entry for _, entry in manifest.shards()]
    names = [entry.file for entry in shards if not entry.folder]
    names += [*(entry.index.file for entry in shards), *manifest.files]

    def put(name: str) -> None:
        # A manifest is copied: who writes into the old file would change a link to it, too.
        by = storage.copy if name == MANIFEST_NAME else storage.link
        # An earlier attempt made a name that exists; the output may hold the next dataset by now.
        if not storage.exists(storage.join(folder, name)):
            by(storage.join(output, name), storage.join(folder, name))

    def put_if_there(name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the old dataset may lack a file
            put(name)

    list(storage.map_concurrently(put_if_there, names))
    put(MANIFEST_NAME)  # comes last, as it makes the copy a complete dataset


def prepare_staging(state: OutputState, digest: str = "") -> str:
    """Prepares the staging folder: keeps finished shards, removes the rest; returns a new job id.

    A job that still runs for this output loses the output here: `ShardPlaces.check_job` stops it.
    A later run knows by `digest`, made of the options, that a committed dataset is its own work.
    """
    staging, job = state.staging, uuid.uuid4().hex
    notes = JobNotes(id=job, digest=digest, pinned_classes=state.pinned_classes)
    try:
        entries, _ = storage.run_concurrently(
            lambda: storage.list_folder(staging),
            lambda: storage.write(storage.join(staging, JOB_NAME), msgspec.json.encode(notes)),
        )
        check_no_links("output", staging, *(entry.name for entry in entries if entry.is_folder))
        for entry in entries:
            # A killed commit may have set a dataset aside, which is kept until another is there.
            kept = {SPOOL_NAME, INDEX_NAME, *([REPLACED_NAME] if state.manifest is None else [])}
            if entry.is_folder and entry.name not in kept:
                storage.delete_folder(entry.path)
        storage.delete(e.path for e in entries if e.name == COMMITTED_NAME)
        storage.delete_unfinished(staging, "*")
        files = ("*.tfrecord", MANIFEST_NAME, *COMPANION_NAMES)
        storage.delete_unfinished(state.output, *files, *DATASET_FOLDERS)
    except OSError as e:
        raise output_error(state.output, e) from e
    return job


def mark_committed(staging: str, fingerprint: str, reused_images: int = 0) -> None:
    content = msgspec.json.encode(Committed(fingerprint, reused_images))
    storage.write(storage.join(staging, COMMITTED_NAME), content)


def committed(staging: str) -> Committed:
    """Reads the content of `COMMITTED_NAME`; the fingerprint is empty without that file."""
    return _read_notes(staging, COMMITTED_NAME, Committed) or Committed()


def remove(staging: str) -> None:
    """Removes the staging folder of a committed dataset, but no lease in a store."""
    lock, *notes = (storage.join(staging, n) for n in (LOCK_NAME, COMMITTED_NAME, JOB_NAME))
    # By the notes, a later run knows that the dataset is its own work, so they are deleted last.
    with contextlib.suppress(OSError):  # remaining files do no harm
        found = storage.files_below(staging)
        storage.delete(file.path for file in found if file.path not in (lock, *notes))
        storage.delete(notes)
    if storage.is_local(staging):
        shutil.rmtree(staging, ignore_errors=True)


def remove_empty(output: str, staging: str, fresh: bool) -> None:
    """Removes the files of a job that had finished no shard, and a `fresh` output folder."""
    with contextlib.suppress(OSError, UserError):
        names = _names_in(output)
        aside = storage.exists(storage.join(staging, REPLACED_NAME, MANIFEST_NAME))
        results = {name for name in _names_in(staging) if name.endswith(".json")}
        is_new = results <= {JOB_NAME, PLAN_NAME, COMMITTED_NAME}
        if is_new and (MANIFEST_NAME in names or not aside):
            remove(staging)
        if fresh and storage.is_local(output) and not os.listdir(output):
            os.rmdir(output)


def _names_in(folder: str) -> list[str]:
    return [entry.name for entry in storage.list_folder(folder)]
