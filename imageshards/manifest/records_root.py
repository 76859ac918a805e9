"""Where the shards of an adopted dataset may lie: below its folder, or below a place of the user's.

`imageshards adopt --output FOLDER` leaves shards where they are, so its manifest names their
folders. A manifest may come from a stranger. The command line, and no file, says which places a
manifest may name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from imageshards import storage
from imageshards.errors import Arg, UserError
from imageshards.manifest.content import Manifest, is_outside

RECORDS_ROOT_HELP = (
    "folder, gs:// or s3:// place where the manifest of an adopted dataset may name shards, also "
    "below it (default: only the dataset's own folder)"
)


def outside_folders(manifest: Manifest) -> list[str]:
    """Returns each folder outside of the dataset's own that the manifest names, in order."""
    return sorted({shard.folder for _, shard in manifest.shards() if is_outside(shard.folder)})


def common_root(folders: Iterable[str]) -> str:
    """Returns the lowest place that all folders are in or below; "" where there is none."""
    parts = os.path.commonprefix([folder.rstrip("/").split("/") for folder in folders])
    if parts == [""]:
        return "/"
    # Without a bucket the name of a store is no place.
    return "" if parts[-1:] == [""] or not parts else "/".join(parts)


def check_folders(
    argument: str, directory: str, manifest: Manifest, records_root: str | os.PathLike[str] | None
) -> None:
    """Checks that each folder that a manifest names is a place where it may lead.

    Args:
        argument: The name of the argument that received `directory`, for errors.
        directory, manifest: The dataset.
        records_root: The place that the user named; None for none.

    Raises:
        UserError: The shards of a folder are neither in the dataset nor below `records_root`.
    """
    refused = outside_folders(manifest)
    if records_root is not None:
        root = storage.absolute_place("records_root", records_root).rstrip("/")
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
    if not storage.is_local(place):
        return place.rstrip("/")
    return os.path.abspath(place)
