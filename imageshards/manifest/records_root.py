"""Checks the folders that the manifest of an adopted dataset names.

`imageshards adopt --output FOLDER` leaves shards where they are, so its manifest names their
folders. A manifest may come from a stranger, so only the user allows places outside of the
dataset's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest.content import Manifest, is_outside

RECORDS_ROOT_HELP = (
    "folder, gs:// or s3:// place in which the manifest of an adopted dataset may name shards "
    "(default: only the dataset's own folder)"
)


def outside_folders(manifest: Manifest) -> list[str]:
    """Returns each folder outside of the dataset's own that the manifest names, in order."""
    return sorted({shard.folder for _, shard in manifest.shards() if is_outside(shard.folder)})


def common_root(folders: Iterable[str]) -> str:
    """Returns the lowest place that all folders are in or below; "" where there is none."""
    parts = os.path.commonprefix([folder.rstrip("/").split("/") for folder in folders])
    if parts == [""]:
        return "/"
    # Two buckets share only `gs:` and an empty part, which is no place.
    return "" if parts[-1:] == [""] or not parts else "/".join(parts)


def check_folders(
    argument: str, directory: str, manifest: Manifest, records_root: str | os.PathLike[str] | None
) -> None:
    """Checks that a manifest names no shard outside of the dataset's folder and `records_root`.

    Raises:
        UserError: A shard is in another place; the error names `argument`.
    """
    refused = outside_folders(manifest)
    if records_root is not None:
        root = storage.absolute_place("records_root", records_root).rstrip("/")
        # With a slash at both ends, `/data` does not allow `/data-2`.
        refused = [folder for folder in refused if not f"{_normal(folder)}/".startswith(f"{root}/")]
    if not refused:
        return
    more = f" and {len(refused) - 1:,} other places" if len(refused) > 1 else ""
    raise UserError(
        argument=argument,
        received=f"{directory!r}, whose manifest says that shards are in {refused[0]!r}{more}, "
        "outside of the dataset's folder",
        expected="a place that you allow",
        remedy="if you know where the dataset comes from, give "
        + Arg("records_root", common_root(refused) or refused[0]),
    )


def _normal(place: str) -> str:
    return os.path.abspath(place) if storage.is_local(place) else place.rstrip("/")
