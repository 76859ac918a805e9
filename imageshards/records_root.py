"""Where the shards of an adopted dataset may lie: below its folder, or below a place of the user's.

`imageshards adopt --output FOLDER` leaves shards where they are, so its manifest names their
folders. A manifest may come from a stranger. The command line, and no file, says which places a
manifest may name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from imageshards import storage
from imageshards.errors import UserError

RECORDS_ROOT_HELP = (
    "folder, gs:// or s3:// place where the manifest of an adopted data set may name shards, also "
    "below it (default: only the data set's own folder)"
)


def is_outside(folder: str) -> bool:
    """Whether a shard's folder, as a manifest names it, is not below the dataset's own folder."""
    return os.path.isabs(folder) or not storage.is_local(folder)


def outside_folders(manifest: Mapping[str, Any]) -> list[str]:
    """Returns each folder outside of the dataset's own that the manifest names, in order."""
    splits = manifest["splits"].values()
    folders = {shard.get("folder", "") for split in splits for shard in split["shards"]}
    return sorted(filter(is_outside, folders))


def common_root(folders: Iterable[str]) -> str:
    """Returns the lowest place that all folders are in or below; "" where there is none."""
    parts = os.path.commonprefix([folder.rstrip("/").split("/") for folder in folders])
    if parts == [""]:
        return "/"
    # Without a bucket the name of a store is no place.
    return "" if parts[-1:] == [""] or not parts else "/".join(parts)


def check_folders(
    received: str, manifest: Mapping[str, Any], records_root: str | os.PathLike[str] | None
) -> None:
    """Checks that each folder that a manifest names is a place where it may lead.

    Args:
        received: The beginning of the error, such as `--data received 'shards'`.
        manifest: Of a form that was checked: no folder has `..` in it.
        records_root: The place that the user named; None for none.

    Raises:
        UserError: The shards of a folder are neither in the dataset nor below `records_root`.
    """
    refused = outside_folders(manifest)
    if records_root is not None:
        root = storage.absolute_place("⟦--records_root⟧", records_root).rstrip("/")
        refused = [folder for folder in refused if not f"{_normal(folder)}/".startswith(f"{root}/")]
    if not refused:
        return
    more = f" and {len(refused) - 1:,} other places" if len(refused) > 1 else ""
    raise UserError(
        f"{received}, whose manifest says that shards are in {refused[0]!r}{more}, outside of the "
        "data set's folder; expected a place that you allow: if you know where the data set comes "
        f"from, give ⟦--records_root⟧ {common_root(refused) or refused[0]!r}."
    )


def _normal(place: str) -> str:
    if not storage.is_local(place):
        return place.rstrip("/")
    return os.path.abspath(place)
