"""The folder of an unfinished data set: what may be touched, and what survives a crash."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from beam_pipeline.errors import OutputError, UserError
from beam_pipeline.manifest import MANIFEST_NAME, load_manifest, write_whole
from beam_pipeline.options import BuildOptions

# Written when a job begins: {"pinned_classes": [...]}.
JOB_NAME = "job.json"
# Written just before the manifest: {"fingerprint": "..."}.
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
    if os.path.exists(os.path.join(options.output, MANIFEST_NAME)):
        found = load_manifest(options.output)
        committed = _read(os.path.join(staging, COMMITTED_NAME)).get("fingerprint")
        if committed == found["fingerprint"]:
            return found
        raise UserError(
            f"--output {options.output!r} holds a finished data set; choose another folder, or "
            "replace it with --overwrite."
        )
    others = [
        name for name in os.listdir(options.output) if name.endswith((".tfrecord", ".tfrecord.gz"))
    ]
    if others and not os.path.exists(os.path.join(staging, JOB_NAME)):
        raise UserError(
            f"--output {options.output!r} holds {len(others)} TFRecord files, {others[0]!r} among "
            "them, that no manifest or unfinished job accounts for; choose another folder, or "
            "replace them with --overwrite."
        )
    return None


def prepare(output: str, staging: str) -> None:
    """Removes what an earlier run began and cannot use; finished shards stay.

    Raises:
        OutputError: The folder cannot be written.
    """
    classes = pinned_classes(output, staging)
    try:
        for name in os.listdir(staging):
            path = os.path.join(staging, name)
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif ".tmp-" in name or name == COMMITTED_NAME:
                os.remove(path)
        write_whole(
            os.path.join(staging, JOB_NAME), json.dumps({"pinned_classes": list(classes)}) + "\n"
        )
    except OSError as e:
        raise OutputError(
            f"--output: {staging!r} cannot be written ({e.strerror}); make room or mend its rights."
        ) from e


def pinned_classes(output: str, staging: str) -> tuple[str, ...]:
    """Classes, by id, of the data set that is being replaced; none for a new one.

    They are kept in the staging folder too: the old manifest goes before the new one comes.
    """
    if os.path.exists(os.path.join(output, MANIFEST_NAME)):
        return tuple(load_manifest(output)["classes"])
    return tuple(_read(os.path.join(staging, JOB_NAME)).get("pinned_classes", ()))


def mark_committed(staging: str, fingerprint: str) -> None:
    """Says that the data set with this fingerprint is this job's work."""
    write_whole(os.path.join(staging, COMMITTED_NAME), json.dumps({"fingerprint": fingerprint}))


def remove_empty(output: str, staging: str, fresh: bool) -> None:
    """Leaves no trace of a job that was refused before it had done anything."""
    kept = (JOB_NAME, COMMITTED_NAME)
    try:
        if not any(n.endswith(".json") and n not in kept for n in os.listdir(staging)):
            shutil.rmtree(staging)
        if fresh and not os.listdir(output):
            os.rmdir(output)
    except OSError:
        return


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
