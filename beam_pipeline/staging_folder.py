"""The folder of an unfinished data set: what may be touched, and what survives a crash."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from beam_pipeline import storage
from beam_pipeline.errors import OutputError, UserError
from beam_pipeline.manifest import MANIFEST_NAME, load_manifest, write_whole
from beam_pipeline.options import BuildOptions

LOCK_NAME = "lock"
# Written when a job begins: {"pinned_classes": [...], "in_place": true, ...}.
JOB_NAME = "job.json"
# Written just before the manifest: {"fingerprint": "...", "reused_images": 0}.
COMMITTED_NAME = "committed.json"


def check_output(options: BuildOptions, staging: str) -> dict[str, Any] | None:
    """Refuses to touch what is finished or not ours.

    Returns:
        The manifest, if this job was killed after all its work was committed.

    Raises:
        UserError: A finished data set or foreign shards are in the way.
    """
    if options.overwrite:
        return None
    if storage.exists(storage.join(options.output, MANIFEST_NAME)):
        found = load_manifest(options.output)
        if committed(staging).get("fingerprint") == found["fingerprint"]:
            return found
        raise UserError(
            f"--output {options.output!r} holds a finished data set; choose another folder, or "
            "replace it with --overwrite."
        )
    others = _shards_in(options.output)
    if others and not storage.exists(storage.join(staging, JOB_NAME)):
        raise UserError(
            f"--output {options.output!r} holds {len(others)} TFRecord files, {others[0]!r} among "
            "them, that no manifest or unfinished job accounts for; choose another folder, or "
            "replace them with --overwrite."
        )
    return None


def prepare(output: str, staging: str) -> None:
    """Removes what an earlier run began and cannot use; finished shards stay.

    Here it is decided, once for a job however often it is begun, where finished shards wait
    for the commit: `finished_folder`.

    Raises:
        OutputError: The folder cannot be written.
    """
    exists = storage.exists(storage.join(output, MANIFEST_NAME))
    notes = job_notes(staging)
    classes = load_manifest(output)["classes"] if exists else notes.get("pinned_classes", ())
    in_place = not storage.is_local(output) and not exists and notes.get("in_place", True)
    try:
        entries = storage.list_folder(staging)
        for entry in entries:
            if entry.is_folder:
                storage.delete_folder(entry.path)
        storage.delete(e.path for e in entries if ".tmp-" in e.name or e.name == COMMITTED_NAME)
        add_job_notes(staging, pinned_classes=list(classes), in_place=in_place)
    except OSError as e:
        raise OutputError(
            f"--output: {staging!r} cannot be written ({e.strerror or e}); make room or mend its "
            "rights."
        ) from e


def finished_folder(output: str, staging: str) -> str:
    """Where finished shards wait for the commit.

    A store cannot rename. There they are written where they will be, unless a data set is to
    be replaced: without its manifest a folder is no data set anyway.
    """
    if not storage.is_local(output) and job_notes(staging).get("in_place"):
        return output
    return staging


def job_notes(staging: str) -> dict[str, Any]:
    """What was noted of the job that this folder is of."""
    return _read(storage.join(staging, JOB_NAME))


def add_job_notes(staging: str, **notes: Any) -> None:
    """Notes something of this job for when it is begun again."""
    text = json.dumps(job_notes(staging) | notes) + "\n"
    write_whole(storage.join(staging, JOB_NAME), text)


def pinned_classes(output: str, staging: str) -> tuple[str, ...]:
    """Classes, by id, of the data set that is being replaced; none for a new one.

    They are kept in the staging folder too: the old manifest goes before the new one comes.
    """
    if storage.exists(storage.join(output, MANIFEST_NAME)):
        return tuple(load_manifest(output)["classes"])
    return tuple(job_notes(staging).get("pinned_classes", ()))


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
        storage.delete(found.path for found in storage.files_below(staging) if found.path != lock)
    except OSError:
        return  # the data set is there; what is left may be deleted at any time


def remove_empty(output: str, staging: str, fresh: bool) -> None:
    """Leaves no trace of a job that was refused before it had done anything."""
    try:
        # What lies in its final place without being known as finished is still this job's.
        in_place = finished_folder(output, staging) == output and _shards_in(output)
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
