"""The folder of an unfinished dataset: what may be touched, and what survives a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import uuid
from typing import TypeVar

import msgspec

from beam_pipeline.inputs.spool import SPOOL_NAME
from beam_pipeline.planning.saved import PLAN_NAME
from beam_pipeline.shards.finished import output_error
from beam_pipeline.shards.places import JOB_NAME, JobNotes
from imageshards import storage
from imageshards.errors import Arg, DamagedManifestError, UserError
from imageshards.manifest import (
    INDEX_NAME,
    LOCK_NAME,
    MANIFEST_NAME,
    QUARANTINE_NAME,
    REPLACED_NAME,
    REPORT_NAME,
    TRANSFORM_NAME,
    Manifest,
    load_manifest,
)
from imageshards.output_folder import foreign_files, foreign_files_error
from imageshards.storage import map_concurrently, run_concurrently
from imageshards.typed import Whole, decode

# Written just before manifest.json.
COMMITTED_NAME = "committed.json"
DATASET_FOLDERS = (INDEX_NAME, TRANSFORM_NAME, QUARANTINE_NAME, REPORT_NAME)
"""Folders of a dataset, beside its shards."""
# Of files beside the shards that a build writes: TFDS's, Croissant's.
_COMPANION_SUFFIXES = (".json", ".labels.txt")

_T = TypeVar("_T")


class Committed(msgspec.Struct, frozen=True):
    """What `COMMITTED_NAME` records: the dataset that is the job's work, and images whose shards
    an earlier run had finished.
    """

    fingerprint: str = ""
    reused_images: Whole = 0


@dataclasses.dataclass(frozen=True)
class OutputState:
    """What an output folder holds, read once by the process that holds its lock.

    Attributes:
        output, staging: The folder, and that of its unfinished dataset.
        manifest: That of the dataset, if there is one.
        damage: Why the manifest that is there cannot be read.
        notes: Those of the job whose staging folder it is; None where there is none.
        foreign: Names of files and folders there that none of these accounts for.
    """

    output: str
    staging: str
    manifest: Manifest | None
    damage: UserError | None
    notes: JobNotes | None
    foreign: tuple[str, ...]

    @property
    def pinned_classes(self) -> tuple[str, ...]:
        """Classes, by id, of the dataset that is being replaced; none for a new one.

        They are kept in the notes too: the old manifest goes before the new one comes.
        """
        if self.manifest:
            return tuple(self.manifest.classes)
        return self.notes.pinned_classes if self.notes else ()

    @property
    def in_place(self) -> bool:
        """Whether finished shards are written where they will be.

        In a store they are, as it cannot rename, unless a dataset is to be replaced: without a
        manifest a folder is no dataset anyway. A resumed job keeps to what it began with.
        """
        empty = self.manifest is None and self.damage is None
        may_be = self.notes is None or self.notes.in_place
        return not storage.is_local(self.output) and empty and may_be

    @property
    def finished_folder(self) -> str:
        """Where finished shards wait for the commit."""
        return self.output if self.in_place else self.staging


def read_output_state(output: str, staging: str) -> OutputState:
    """Reads what an output folder holds, by requests that are sent at once."""
    manifest, notes, names = run_concurrently(
        lambda: _manifest(output),
        lambda: _said_in(staging, JOB_NAME, JobNotes),
        lambda: _names_in(output),
    )
    found, damage = manifest
    is_ours = bool(found or notes)
    if damage:  # builds write manifests that begin like this; other programs have some, too
        begin = storage.read(storage.join(output, MANIFEST_NAME), 100).lstrip(b"{ \r\n")
        is_ours = is_ours or begin.startswith(b'"format_version"')
    foreign = () if is_ours else tuple(foreign_files(names))
    return OutputState(output, staging, found, damage, notes, foreign)


def _manifest(output: str) -> tuple[Manifest | None, UserError | None]:
    """The manifest, or why it cannot be read; neither if there is none."""
    if not storage.exists(storage.join(output, MANIFEST_NAME)):
        return None, None
    try:
        return load_manifest(output, "output"), None
    except DamagedManifestError as e:
        return None, e


def check_output(state: OutputState, overwrite: bool, digest: str = "") -> bool:
    """Refuses to touch what is finished, and, whatever the flags, what is not ours.

    Args:
        state: What is in the output.
        overwrite: Whether a finished dataset may be replaced.
        digest: Of the options of this build, as for `prepare_staging`.

    Returns:
        True if an earlier run of this job had committed all its work and was then killed.

    Raises:
        UserError: A finished dataset or files that are not ours are in the way.
    """
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
    raise UserError(
        argument="output",
        received=f"{state.output!r}, which holds a finished dataset",
        remedy="choose another folder, or replace it with " + Arg("overwrite", True),
    )


def _said_in(staging: str, name: str, kind: type[_T]) -> _T | None:
    """Returns the content of a file, or None where there is no such file or it has another form.

    Raises:
        OSError: The file cannot be read. Without committed.json, `set_aside` would take this job's
            own dataset for the one that it replaces.
    """
    try:
        return decode(storage.read(storage.join(staging, name)), kind)
    except (FileNotFoundError, ValueError):
        return None


def set_aside(output: str, staging: str) -> None:
    """Takes the manifest away, so that another dataset may take its place; may be done again.

    The dataset that was there is in the staging folder before its manifest goes, and stays
    there, whole, until the new one's is written.
    """
    path = storage.join(output, MANIFEST_NAME)
    if not storage.exists(path):
        return
    try:
        manifest = load_manifest(output, "output")
    except DamagedManifestError:  # that is no dataset already
        storage.delete([path])
        return
    if committed(staging).fingerprint == manifest.fingerprint:
        return  # it is this job's own
    _link_dataset(output, storage.join(staging, REPLACED_NAME), manifest)
    storage.delete([path])


def _link_dataset(output: str, folder: str, manifest: Manifest) -> None:
    """Gives the files of a dataset second names, in a store copies, in another folder.

    A name that is there stays: another attempt has made it, and what is in the output may be
    the next dataset's by now.
    """
    shards = {entry.file for _, entry in manifest.shards()}
    folders = set(DATASET_FOLDERS) - {REPORT_NAME}
    names = []
    for entry in storage.list_folder(output):
        if entry.is_folder and entry.name in folders:
            below = storage.files_below(entry.path)
            names += [file.path[len(entry.path) - len(entry.name) :] for file in below]
        elif entry.name in shards or entry.name.endswith(_COMPANION_SUFFIXES):
            names.append(entry.name)

    def put(name: str) -> None:
        # By a link, a manifest that somebody writes over the old one would be in both places.
        by = storage.copy if name == MANIFEST_NAME else storage.link
        if not storage.exists(storage.join(folder, name)):
            by(storage.join(output, name), storage.join(folder, name))

    for _ in map_concurrently(put, [name for name in names if name != MANIFEST_NAME]):
        pass
    put(MANIFEST_NAME)  # last: now it is complete


def prepare_staging(state: OutputState, digest: str = "") -> str:
    """Readies the staging folder: removes what a killed run left unfinished, keeps its shards.

    A dataset that a killed commit had set aside stays as long as there is no other one. A job
    that still runs for this output loses it here: `ShardPlaces.check_job` stops that job.

    Args:
        state: What is in the output.
        digest: Of the options of this build, by which a later one knows its own work.

    Returns:
        The id of the new job, which its steps compare with that in the staging folder.
    """
    staging, job = state.staging, uuid.uuid4().hex
    classes, in_place = state.pinned_classes, state.in_place
    notes = JobNotes(id=job, digest=digest, in_place=in_place, pinned_classes=classes)
    try:
        entries, _ = run_concurrently(
            lambda: storage.list_folder(staging),
            lambda: storage.write(storage.join(staging, JOB_NAME), msgspec.json.encode(notes)),
        )
        for entry in entries:
            kept = {SPOOL_NAME, INDEX_NAME, *([REPLACED_NAME] if state.manifest is None else [])}
            if entry.is_folder and entry.name not in kept:
                storage.delete_folder(entry.path)
        storage.delete(e.path for e in entries if e.name == COMMITTED_NAME)
        storage.delete_unfinished(staging, "*")
        shards_and_companions = ("*.tfrecord", *(f"*{suffix}" for suffix in _COMPANION_SUFFIXES))
        storage.delete_unfinished(state.output, *shards_and_companions, *DATASET_FOLDERS)
    except OSError as e:
        raise output_error(state.output, e) from e
    return job


def mark_committed(staging: str, fingerprint: str, reused_images: int = 0) -> None:
    """Records that the dataset with this fingerprint is this job's work, and what was reused."""
    said = Committed(fingerprint, reused_images)
    storage.write(storage.join(staging, COMMITTED_NAME), msgspec.json.encode(said))


def committed(staging: str) -> Committed:
    """What `mark_committed` recorded; no fingerprint if it did not."""
    return _said_in(staging, COMMITTED_NAME, Committed) or Committed()


def has_committed(before: OutputState) -> bool:
    """Whether the job that found this state of its output has put a dataset there since."""
    manifest, _ = _manifest(before.output)
    if manifest is None:
        return False
    known = before.manifest.fingerprint if before.manifest else None
    found = manifest.fingerprint
    return found != known or found == committed(before.staging).fingerprint


def remove(staging: str) -> None:
    """Removes the staging folder of a committed dataset; in a store the lease in it stays.

    The files by which a later run knows that its work is done go last.
    """
    lock, *notes = (storage.join(staging, n) for n in (LOCK_NAME, COMMITTED_NAME, JOB_NAME))
    with contextlib.suppress(OSError):  # what is left may be deleted at any time
        found = storage.files_below(staging)
        storage.delete(file.path for file in found if file.path not in (lock, *notes))
        storage.delete(notes)
    if storage.is_local(staging):
        shutil.rmtree(staging, ignore_errors=True)


def remove_empty(output: str, staging: str, fresh: bool) -> None:
    """Removes the traces of a job that was refused before it had finished a shard."""
    with contextlib.suppress(OSError, UserError):
        names = _names_in(output)
        # Shards that were written to their final place but have no result yet are this job's, too.
        notes = _said_in(staging, JOB_NAME, JobNotes)
        in_place = notes and notes.in_place and any(name.endswith(".tfrecord") for name in names)
        aside = storage.exists(storage.join(staging, REPLACED_NAME, MANIFEST_NAME))
        keeps = in_place or (aside and MANIFEST_NAME not in names)
        results = {name for name in _names_in(staging) if name.endswith(".json")}
        if not keeps and results <= {JOB_NAME, PLAN_NAME, COMMITTED_NAME}:
            remove(staging)
        if fresh and storage.is_local(output) and not os.listdir(output):
            os.rmdir(output)


def _names_in(folder: str) -> list[str]:
    return [entry.name for entry in storage.list_folder(folder)]
