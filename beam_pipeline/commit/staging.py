"""The folder of an unfinished data set: what may be touched, and what survives a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from typing import Any

from imageshards import storage
from imageshards.errors import DamagedManifestError, OutputError, UserError
from imageshards.manifest import MANIFEST_NAME, load_manifest, write_whole
from imageshards.storage import run_concurrently

LOCK_NAME = "lock"
# Written when a job begins: {"pinned_classes": [...], "in_place": true, ...}.
JOB_NAME = "job.json"
# Written just before the manifest: {"fingerprint": "...", "reused_images": 0}.
COMMITTED_NAME = "committed.json"


@dataclasses.dataclass(frozen=True)
class OutputState:
    """What an output folder holds; asked once, by who holds its lock.

    Attributes:
        output, staging: The folder, and that of its unfinished data set.
        manifest: Of the data set, if there is one.
        damage: Why the manifest that is there cannot be read.
        notes: What was noted of the job that the staging folder is of.
        shards: Names of TFRecord files.
    """

    output: str
    staging: str
    manifest: dict[str, Any] | None
    damage: UserError | None
    notes: dict[str, Any]
    shards: tuple[str, ...]

    @property
    def pinned_classes(self) -> tuple[str, ...]:
        """Classes, by id, of the data set that is being replaced; none for a new one.

        They are kept in the notes too: the old manifest goes before the new one comes.
        """
        known = self.manifest["classes"] if self.manifest else self.notes.get("pinned_classes", ())
        return tuple(known)

    @property
    def in_place(self) -> bool:
        """Whether finished shards are written where they will be.

        A store cannot rename. There they are, unless a data set is to be replaced: without its
        manifest a folder is no data set anyway. Once begun, a job goes on as it began.
        """
        empty = self.manifest is None and self.damage is None
        return not storage.is_local(self.output) and empty and self.notes.get("in_place", True)

    @property
    def finished_folder(self) -> str:
        """Where finished shards wait for the commit."""
        return self.output if self.in_place else self.staging


def look(output: str, staging: str) -> OutputState:
    """What an output folder holds, in as little time as one request takes.

    Raises:
        UserError: Its manifest cannot be read, or is a newer version's.
    """
    manifest, notes, shards = run_concurrently(
        lambda: _manifest(output), lambda: job_notes(staging), lambda: _shards_in(output)
    )
    found, damage = manifest
    return OutputState(output, staging, found, damage, notes, tuple(shards))


def _manifest(output: str) -> tuple[dict[str, Any] | None, UserError | None]:
    """The manifest, or why it cannot be read; neither if there is none."""
    if not storage.exists(storage.join(output, MANIFEST_NAME)):
        return None, None
    try:
        return load_manifest(output), None
    except DamagedManifestError as e:
        return None, e


def check_output(state: OutputState, overwrite: bool) -> bool:
    """Refuses to touch what is finished or not ours.

    Returns:
        Whether this job was killed after all its work was committed.

    Raises:
        UserError: A finished data set or foreign shards are in the way.
    """
    if overwrite:
        return False
    if state.damage:
        raise state.damage
    if state.manifest:
        if committed(state.staging).get("fingerprint") == state.manifest["fingerprint"]:
            return True
        raise UserError(
            f"--output {state.output!r} holds a finished data set; choose another folder, or "
            "replace it with --overwrite."
        )
    if state.shards and not storage.exists(storage.join(state.staging, JOB_NAME)):
        raise UserError(
            f"--output {state.output!r} holds {len(state.shards)} TFRecord files, "
            f"{state.shards[0]!r} among them, that no manifest or unfinished job accounts for; "
            "choose another folder, or replace them with --overwrite."
        )
    return False


def prepare(state: OutputState) -> None:
    """Removes what an earlier run began and cannot use; finished shards stay.

    Raises:
        OutputError: The folder cannot be written.
    """
    staging = state.staging
    kept = {"pinned_classes": list(state.pinned_classes), "in_place": state.in_place}
    try:
        entries, *_ = run_concurrently(
            lambda: storage.list_folder(staging),
            lambda: _write_notes(staging, state.notes | kept),
            lambda: _drop_unfinished(state.output),
            lambda: _drop_unfinished(staging),
        )
        for entry in entries:
            if entry.is_folder:
                storage.delete_folder(entry.path)
        storage.delete(e.path for e in entries if ".tmp-" in e.name or e.name == COMMITTED_NAME)
    except OSError as e:
        raise OutputError(
            f"--output: {staging!r} cannot be written ({e.strerror or e}); make room or fix its "
            "rights."
        ) from e


def job_notes(staging: str) -> dict[str, Any]:
    """What was noted of the job that this folder is of."""
    return _read(storage.join(staging, JOB_NAME))


def add_job_notes(staging: str, **notes: Any) -> None:
    """Notes something of this job for when it is begun again."""
    _write_notes(staging, job_notes(staging) | notes)


def _write_notes(staging: str, notes: dict[str, Any]) -> None:
    write_whole(storage.join(staging, JOB_NAME), json.dumps(notes) + "\n")


def mark_committed(staging: str, fingerprint: str, reused_images: int = 0) -> None:
    """Says that the data set with this fingerprint is this job's work.

    Args:
        staging: The folder.
        fingerprint: Of the data set.
        reused_images: Images whose shards an earlier run had finished.
    """
    said = {"fingerprint": fingerprint, "reused_images": reused_images}
    write_whole(storage.join(staging, COMMITTED_NAME), json.dumps(said))


def committed(staging: str) -> dict[str, Any]:
    """What `mark_committed` said; nothing if it did not."""
    return _read(storage.join(staging, COMMITTED_NAME))


def finished_shards(staging: str) -> int:
    """How many shards are finished, from a listing of the folder."""
    return sum(_is_result(entry.name) for entry in storage.list_folder(staging))


def remove(staging: str) -> None:
    """Removes the folder when a data set is committed, but on a store not the lease in it."""
    if storage.is_local(staging):
        shutil.rmtree(staging, ignore_errors=True)
        return
    lock = storage.join(staging, LOCK_NAME)
    try:
        found, *_ = run_concurrently(
            lambda: list(storage.files_below(staging)),
            lambda: _drop_unfinished(storage.parent_of(staging)),
            lambda: _drop_unfinished(staging),
        )
        storage.delete(file.path for file in found if file.path != lock)
    except OSError:
        return  # the data set is there; what is left may be deleted at any time


def _drop_unfinished(folder: str) -> None:
    """Parts of shards whose processes were killed; who holds the lock has no others there."""
    with contextlib.suppress(OSError, UserError):  # it is a right of its own
        storage.drop_unfinished(folder)


def remove_empty(output: str, staging: str, fresh: bool) -> None:
    """Leaves no trace of a job that was refused before it had done anything."""
    try:
        # What lies in its final place without being known as finished is still this job's.
        in_place = job_notes(staging).get("in_place") and _shards_in(output)
        if not finished_shards(staging) and not in_place:
            remove(staging)
        if fresh and storage.is_local(output) and not os.listdir(output):
            os.rmdir(output)
    except (OSError, UserError):
        return


def _shards_in(output: str) -> list[str]:
    names = (entry.name for entry in storage.list_folder(output))
    return [name for name in names if name.endswith((".tfrecord", ".tfrecord.gz"))]


def _is_result(name: str) -> bool:
    return name.endswith(".json") and name not in (JOB_NAME, COMMITTED_NAME)


def _read(path: str) -> dict[str, Any]:
    try:
        found = json.loads(storage.read(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
